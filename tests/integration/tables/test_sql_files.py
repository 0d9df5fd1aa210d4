"""Files of SQL in real sessions with both table formats: their parameters, what they stage, and how they fail."""

from __future__ import annotations

import pytest
from tests.support.lake import Lake

from retrofill.driver.preparing import Fields
from retrofill.driver.sql import SqlFailed, run_sql
from retrofill.outputs.cannot_stage import CannotStage, OtherInterval
from retrofill.protocol.launch import Sql
from retrofill.sdk.texts import Table

# Where Spark's own parameters may not be: views, defaults of variables, scripts, and the names of tables.
EVERYWHERE = """
-- The rows of the day; a comment.
CREATE OR REPLACE TEMPORARY VIEW wanted AS
SELECT :first_day AS day, :n AS n, :note AS note WHERE TIMESTAMP '2013-01-01 05:00:00 UTC' = :start;
DECLARE OR REPLACE VARIABLE more INT DEFAULT :n;
BEGIN
  IF :n = 1 THEN SET more = :n + 9; END IF;
END;
SELECT assert_true(:end - :start = INTERVAL 24 HOURS), ';' AS text;
SELECT day, CAST(n + more AS BIGINT) AS n, note FROM wanted
UNION ALL SELECT day, n, note FROM IDENTIFIER(:other) WHERE day < :first_day
"""


def run(lake: Lake, text: str, *, into: bool = True, **parameters: object) -> list[str]:
    """What is seen after the file ran for the first of January, and was published."""
    attempt = lake.attempt()
    fields = Fields(attempt.launch, attempt.piece, attempt.staging, "a")
    sql = Sql("/jobs/totals.sql", text, parameters, Table(lake.table, "day") if into else None)
    try:
        run_sql(sql, "a", fields, lake.spark, attempt.staging.tables)
        attempt.outputs = attempt.staging.seal()
        if into:
            attempt.publish()
    except BaseException:
        attempt.staging.discard()
        raise
    return lake.content()


def test_parameters_are_literals_wherever_they_stand(lake: Lake) -> None:
    found = run(lake, EVERYWHERE, n=1, note="it's ; \\ ${{x}} \U0001f600", other=lake.table)
    assert found == ["1 it's ; \\ ${x} \U0001f600"]
    (row,) = lake.spark.table(lake.table).collect()
    assert row.n == 11


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT 1;\n\nSELEC 2;\nSELECT 3", r"^/jobs/totals\.sql, line 3, in statement 2 of 3: \[PARSE_SYNTAX_ERROR\]"),
        ("SELECT\n 1,\n nope", r"^/jobs/totals\.sql, line 3, in statement 1 of 1: \[UNRESOLVED_COLUMN"),
        (
            "-- a\nSELECT 1;\nINSERT INTO lake.db.none\nSELECT 1;\nSELECT 1",
            r"line 4, in statement 2 of 3|line 3, in statement 2",
        ),
        ("SELECT raise_error('no rows'); SELECT 1", "line 1, in statement 1 of 2: .*no rows"),
    ],
)
def test_an_error_names_the_file_the_line_and_the_statement(lake: Lake, text: str, why: str) -> None:
    with pytest.raises(SqlFailed, match=why) as failed:
        run(lake, text)
    assert "\n" not in str(failed.value)
    assert (lake.content(), lake.staged()) == ([], [])


def test_rows_that_do_not_fit_are_refused_as_those_of_functions(lake: Lake) -> None:
    with pytest.raises(OtherInterval):
        run(lake, "SELECT date_add(:first_day, 1) AS day, 1L AS n, 'a' AS note")
    with pytest.raises(CannotStage, match="the rows have no column 'note'"):
        run(lake, "SELECT :first_day AS day, 1L AS n")
    assert (lake.content(), lake.staged()) == ([], [])


def test_without_a_table_the_statements_write_themselves(lake: Lake) -> None:
    text = "INSERT INTO IDENTIFIER(:to) SELECT :last_day, :run_id, 'a'; SELECT 1"
    assert run(lake, text, into=False, to=lake.table) == ["1 a"]
