"""The forms of ``-o``: a table that fits or is wide, names, JSON and YAML."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from retrofill_tools.cli.options import Form
from retrofill_tools.cli.output import Column, print_list, print_one, print_text
from retrofill_tools.cli.yaml import as_yaml

TEXTS = [
    "", " ", "plain", "two words", "yes", "No", "null", "~", "1", "1.5", "1e3", "0x1f", "2024-01-01", "a: b", "- a", "#a",
    "a #b", "'", '"', "\\", "{a}", "[a]", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a`", "ü – …", "\t", "a\tb", "\x07", "\x1b[31m",
    "\u2028", "\ufeff", "😀", "\n", "a\n", "a\nb", "a\nb\n", "a\nb\n\n", "\na\nb", "  a\nb", "a\n  b\n c", "a \nb", "a\n\nb",
    'File "flights.py", line 31\n  raise ValueError\nValueError: none',
]  # fmt: skip
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from(TEXTS), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "around", [lambda x: x, lambda x: [x], lambda x: {"a": x}, lambda x: {"a": [{"b": x, "c": [[x]]}]}]
)
def test_yaml_of_a_text_is_read_as_the_text(text: str, around: Any) -> None:
    assert yaml.safe_load(as_yaml(around(text))) == around(text)


@given(JSON)
def test_yaml_is_read_as_what_was_written(value: Any) -> None:
    assert yaml.safe_load(as_yaml(value)) == value


def test_yaml_looks_like_that() -> None:
    document = {
        "id": "b",
        "runs": 2,
        "at": "2024-01-01",
        "failed": [{"id": 7, "error": "a:\n  b"}],
        "none": [],
        "more": {},
    }
    assert as_yaml(document) == (
        'id: b\nruns: 2\nat: "2024-01-01"\nfailed:\n  - id: 7\n    error: |2-\n      a:\n        b\nnone: []\nmore: {}\n'
    )


ROWS = [{"id": "b" * 30, "at": datetime(2024, 1, 1, tzinfo=UTC), "note": "long " * 20} for _ in range(2)]
COLUMNS = [
    Column("id", lambda each: each["id"], keep=True),
    Column("note", lambda each: each["note"]),
    Column("at", lambda each: each["at"], wide=True),
]


def printed(capsys: pytest.CaptureFixture[str], form: Form, found: list[Any] = ROWS) -> str:
    print_list(form, found, COLUMNS, name=lambda each: each["id"], empty="nothing")
    return capsys.readouterr().out


def test_a_table_fits_where_there_are_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in ("40", "80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = printed(capsys, Form.TABLE).splitlines()
        assert max(map(len, lines)) <= int(columns)
        assert lines[0].split() == ["id", "note"]


@pytest.mark.parametrize(("form", "headings"), [(Form.TABLE, ["id", "note"]), (Form.WIDE, ["id", "note", "at"])])
def test_in_a_pipe_a_row_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: Form, headings: list[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    heading, *rows = printed(capsys, form).splitlines()
    assert heading.split() == headings
    assert [row.split()[0] for row in rows] == [each["id"] for each in ROWS]
    assert all(row == row.rstrip() for row in rows)


def test_a_wide_one_is_not_cut_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert len(printed(capsys, Form.WIDE).splitlines()) == 3


@pytest.mark.parametrize(
    ("form", "said"), [(Form.TABLE, "nothing\n"), (Form.WIDE, "nothing\n"), (Form.NAME, ""),
     (Form.JSON, "[]\n"), (Form.YAML, "[]\n")]
)  # fmt: skip
def test_what_is_printed_of_nothing(capsys: pytest.CaptureFixture[str], form: Form, said: str) -> None:
    assert printed(capsys, form, []) == said


def test_names_are_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, Form.NAME) == f"{'b' * 30}\n{'b' * 30}\n"


@pytest.mark.parametrize(
    ("form", "said"),
    [(Form.TABLE, "facts\n"), (Form.WIDE, "facts\n"), (Form.NAME, "b\n"),
     (Form.JSON, '{\n  "id": "b"\n}\n'), (Form.YAML, "id: b\n")],
)  # fmt: skip
def test_one_thing(capsys: pytest.CaptureFixture[str], form: Form, said: str) -> None:
    print_one(form, {"id": "b"}, "b", lambda: print_text("facts"))
    assert capsys.readouterr().out == said
