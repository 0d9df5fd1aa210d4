"""Files of SQL as tasks: how they are found, and what is refused when the pipeline is applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.loading import definition_of

from retrofill import Pipeline, Table
from retrofill_core.domain.pipeline import CodeLocation, TaskDefinition

INTO = Table("lake.db.totals", "day")


def task(folder: Path, text: str, mode: str = "each", **options: Any) -> TaskDefinition:
    (folder / "totals.sql").write_text(text)
    pipeline = Pipeline("totals", schedule="@daily", batch_mode=mode)
    pipeline.sql("totals", "totals.sql", **options)
    return definition_of(pipeline, CodeLocation(file=str(folder / "totals.py"), attribute="totals")).tasks[0]


def test_the_text_is_that_of_the_file_when_it_is_applied(tmp_path: Path) -> None:
    text = "SET x = ':none'; SELECT :start, :n"
    made = task(tmp_path, text, parameters={"n": 3, "source": "{conf[source]}"}, into=INTO)
    assert made.sql is not None and made.kind == "sql" and made.needs_session
    assert (made.sql.text, made.sql.parameters) == (text, {"n": 3, "source": "{conf[source]}"})
    assert made.texts == ("{conf[source]}", "lake.db.totals")
    assert not made.bypasses_reviews


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        ("SELECT 1;\nSELECT :strat", {}, "totals.sql, line 2: there is no parameter :strat: did you mean :start? Use :start, :end"),
        ("SELECT :day", {"parameters": {"days": 1}}, ":days, or add it to the task's parameters"),
        ("SELECT 1;\n\nSELECT 'a", {}, "totals.sql, line 3: what ' begins has no end"),
        ("-- nothing", {}, "totals.sql has no statement"),
        ("SELECT 1;\nSET x = 1", {"into": INTO}, "line 2: the last statement must be a query, whose rows are staged for lake"),
        ("SELECT 1", {"parameters": {"start": 1}}, "parameter 'start': use another name"),
        ("SELECT 1", {"parameters": {"a b": 1}}, "parameter 'a b': use another name"),
        ("SELECT :a", {"parameters": {"a": "{interval.strat}"}}, "unknown field 'interval.strat'"),
        ("SELECT :a", {"parameters": {"a": "{secret[KEY]}"}}, "Spark shows the text of statements, so no parameter may be"),
        ("SELECT :a", {"parameters": {"a": "{stage_table:x.y}"}}, "'x.y' is not one of the task's tables"),
        ("SELECT :start", {"mode": "range"}, "with batch_mode='range', a file of SQL must process up to the end of the range"),
        ("SELECT :a", {"mode": "range", "parameters": {"a": "{stage:/x/{interval.end}}"}}, "cannot stage directories"),
    ],
)  # fmt: skip
def test_what_no_run_could_execute_is_refused(tmp_path: Path, text: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError) as refused:
        task(tmp_path, text, **options)
    assert why in str(refused.value)


@pytest.mark.parametrize("text", ["SELECT :end", "SELECT :last_day", "SELECT :a"])
def test_a_range_is_processed_to_its_end(tmp_path: Path, text: str) -> None:
    task(tmp_path, text, "range", parameters={"a": "{interval.end-1d}"}, into=INTO)


def test_a_file_that_is_not_there_is_refused_with_its_path(tmp_path: Path) -> None:
    pipeline = Pipeline("totals", schedule="@daily")
    pipeline.sql("totals", "none.sql")
    with pytest.raises(ValueError, match=r"task 'totals': .*/none\.sql cannot be read: No such file or directory"):
        pipeline.to_data(str(tmp_path / "totals.py"))
    (tmp_path / "none.sql").write_bytes(b"SELECT '\xff'")
    with pytest.raises(ValueError, match="it is not UTF-8"):
        pipeline.to_data(str(tmp_path / "totals.py"))


def test_without_a_table_it_bypasses_reviews(tmp_path: Path) -> None:
    assert task(tmp_path, "INSERT INTO t SELECT 1").bypasses_reviews
    assert not task(tmp_path, "SELECT 1", writes_nothing=True).bypasses_reviews
    directory = {"to": "{stage:/data/day={interval.start:%F}}"}
    assert not task(tmp_path, "SELECT :to", parameters=directory).bypasses_reviews
