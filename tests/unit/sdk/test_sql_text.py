"""A file of SQL is divided into statements, and its parameters are found."""

from __future__ import annotations

import pytest

from retrofill.sdk.texts import BadSql, statements

SCRIPT = """BEGIN
  DECLARE x INT DEFAULT 1;
  IF x = 1 THEN SELECT 1; END IF;
  CASE x WHEN 1 THEN SELECT 2; ELSE SELECT 3; END CASE;
  WHILE x < 3 DO SET x = CASE WHEN x < 2 THEN 2 ELSE 3 END; END WHILE;
  inner: BEGIN SELECT t.end FROM t; END inner;
  FOR row AS SELECT 1 AS end DO SELECT row.end; END FOR;
  REPEAT SET x = 4; UNTIL x = 4 END REPEAT;
END"""


def texts(sql: str) -> list[str]:
    return [each.filled(lambda name: f"<{name}>") for each in statements(sql)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;\n\nSELECT 2;\n", ["SELECT 1", "SELECT 2"]),
        ("", []),
        (" ;; -- nothing; here\n /* or; here */ ;", []),
        ("SELECT ';', \";\", `;`; SELECT 2", ["SELECT ';', \";\", `;`", "SELECT 2"]),
        ("SELECT 'it''s;', '\\';', \"a\"\";\"; SELECT 2", ["SELECT 'it''s;', '\\';', \"a\"\";\"", "SELECT 2"]),
        ("SELECT r'\\'; SELECT R\"\\\"; SELECT bar';'", ["SELECT r'\\'", 'SELECT R"\\"', "SELECT bar';'"]),
        ("SELECT 1 -- one; two '\n, 2; SELECT 3", ["SELECT 1 -- one; two '\n, 2", "SELECT 3"]),
        ("SELECT /* a; /* b; */ c; */ 1; SELECT 2", ["SELECT /* a; /* b; */ c; */ 1", "SELECT 2"]),
        ("SELECT $$a;'b$$; SELECT $t$ $$; $t$", ["SELECT $$a;'b$$", "SELECT $t$ $$; $t$"]),
        (f"{SCRIPT}; SELECT 2", [SCRIPT, "SELECT 2"]),
        (f"-- first\nouter: {SCRIPT} outer;\nSELECT 2", [f"outer: {SCRIPT} outer", "SELECT 2"]),
        ("begin select 1; end; select 2", ["begin select 1; end", "select 2"]),
        ("SELECT begin, 1 AS end, CASE WHEN a THEN b END FROM t; SELECT 2", None),
        ("CREATE VIEW v AS SELECT 1 AS begin; SELECT 2", None),
        ("SELECT 'a\nb;\nc'; SELECT 2", ["SELECT 'a\nb;\nc'", "SELECT 2"]),
        ("SELECT :a, m[:b], f(:c,:d), x-:e, :f.g", ["SELECT <a>, m[<b>], f(<c>,<d>), x-<e>, <f>.g"]),
        ("SELECT ':a', \":a\", `:a`, r':a' -- :a\n/* :a */", ["SELECT ':a', \":a\", `:a`, r':a'"]),
        ("SELECT a::int, cast(b AS struct<c:int,d:string>), e:f, '${env:HOME}'", None),
        ("SELECT ${hivevar:day}, 10:a, ts_1:b, f():c, [1]:d, 'x':e", None),
        ("SELECT 1 WHERE day>=:start AND day<:end", ["SELECT 1 WHERE day>=<start> AND day<<end>"]),
    ],
)
def test_statements_end_at_semicolons_of_their_own(sql: str, expected: list[str] | None) -> None:
    assert texts(sql) == (sql.split("; ") if expected is None else expected)


@pytest.mark.parametrize(
    ("sql", "is_query"),
    [
        ("SELECT 1", True),
        ("select update FROM t", True),
        ("VALUES (1)", True),
        ("TABLE t", True),
        ("FROM t SELECT a", True),
        ("FROM t INSERT INTO u SELECT a INSERT INTO v SELECT b", False),
        ("WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("WITH a AS (SELECT insert FROM b) SELECT * FROM a", True),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", False),
        ("WITH a AS (SELECT 1) MERGE INTO t USING a ON true WHEN MATCHED THEN DELETE", False),
        ("(SELECT 1) UNION (SELECT 2)", True),
        ("-- rows\nSELECT 1", True),
        ("/*+ no hint */ SELECT 1", True),
        ("INSERT INTO t SELECT 1", False),
        ("CREATE TABLE t AS SELECT 1", False),
        ("SET x = 1", False),
        ("BEGIN SELECT 1; END", False),
        ("'text'", False),
    ],
)
def test_queries_are_told_from_what_changes_something(sql: str, is_query: bool) -> None:
    (statement,) = statements(sql)
    assert statement.is_query == is_query


def test_lines_are_those_of_the_file() -> None:
    found = statements("-- a\n\nSELECT 'x\n',\n :a;\n\n  SELECT\n :b, :a")
    assert [(each.line, each.parameters) for each in found] == [(3, [("a", 5)]), (7, [("b", 8), ("a", 8)])]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT 1;\nSELECT 'a;\n", "line 2: what ' begins has no end"),
        ('SELECT "a', 'line 1: what " begins has no end'),
        ("SELECT `a", "line 1: what ` begins has no end"),
        ("SELECT $x$ a $$", r"line 1: what \$x\$ begins has no end"),
        ("\n/* a /* b */", r"line 2: the comment that /\* begins has no end"),
        ("SELECT 1;\nBEGIN\n SELECT 1;\nIF a THEN SELECT 2; END IF;\n", "line 2: BEGIN has no END"),
    ],
)
def test_what_has_no_end_is_told_with_its_line(sql: str, why: str) -> None:
    with pytest.raises(BadSql, match=why):
        statements(sql)
