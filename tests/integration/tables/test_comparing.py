"""Comparisons of a review, on real tables and directories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.lake import DAY, FIRST, Attempt, Lake

from retrofill.errors import UserError
from retrofill.outputs.kept import key_of
from retrofill.outputs.publication import Written, seal
from retrofill.outputs.summary import Column
from retrofill_tools.client.comparing import Change, StagedRun, changes
from retrofill_tools.client.pipelines import StoredDefinition

pytestmark = pytest.mark.spark
NEW_YORK = "America/New_York"


def staged(attempt: Attempt, *outputs: str) -> StagedRun:
    """The run, staged by this attempt."""
    run, id = attempt.run, attempt.launch.attempt_id
    return StagedRun(run.id, run.interval_start, run.interval_end, {"folders": list(outputs)}, id)


def compared(lake: Lake, attempt: Attempt, *outputs: str) -> Change:
    (found,) = changes(lake.spark, [staged(attempt, *outputs)], StoredDefinition({"timezone": NEW_YORK}), "")
    return found


def test_a_table_is_compared_within_the_interval(lake: Lake) -> None:
    for day, notes in ((1, ("a", "b")), (2, ("elsewhere",))):
        before = lake.attempt(run_id=day, day=day)
        before.stage(lake.table, *notes, day=f"2013-01-0{day}")
        before.publish()
    attempt = lake.attempt(run_id=3)
    attempt.stage(lake.table, "a", "b", "c")
    (outputs,) = attempt.outputs.values()
    found = compared(lake, attempt, *outputs)
    assert found.before is not None
    assert (found.before.rows, found.after.rows, found.rows) == (2, 3, 1)
    assert found.columns == ["n", "note"]
    assert (found.before.columns["n"], found.after.columns["n"]) == (Column(0, 1.0, "0", "1"), Column(0, 3.0, "0", "2"))
    assert found.after.columns["note"] == Column(0, None, "a", "c")
    assert (found.start, found.end) == (FIRST, FIRST + DAY)


def folders(lake: Lake, target: Path, attempt: Attempt, published: Mapping[str, int] | None, format: str) -> None:
    """Seal a directory with three rows, and publish one with ``published``: how many rows by file."""
    key = key_of("", attempt.run.id)
    folder = target.parent / "_retrofill" / f"{target.name}@{key}" / "w"
    lake.spark.range(3).selectExpr("id", "if(id = 1, null, id) AS half").write.format(format).save(str(folder / "new"))
    seal([Written(folder, target, key, {})], attempt.launch.attempt_id)
    for name, rows in (published or {}).items():
        lake.spark.range(rows).selectExpr("id", "id AS half").coalesce(1).write.format(format).save(str(target / name))


@pytest.mark.long
@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_directories_are_compared(lake: Lake, tmp_path: Path) -> None:
    attempt = lake.attempt()
    folders(lake, tmp_path / "day", attempt, None, "parquet")
    assert compared(lake, attempt, str(tmp_path / "day")).before is None
    target = tmp_path / "other"
    folders(lake, target, attempt, None, "parquet")
    lake.spark.range(2).selectExpr("id", "id AS half").write.parquet(str(target))
    found = compared(lake, attempt, str(target))
    assert found.before is not None
    assert (found.before.rows, found.after.rows) == (2, 3)
    assert found.columns == ["id", "half"]
    assert (found.before.columns["half"].nulls, found.after.columns["half"].nulls) == (0, 1)
    assert found.after.bytes is not None


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_files_that_spark_does_not_read_have_a_size_and_what_is_gone_is_told(lake: Lake, tmp_path: Path) -> None:
    attempt, target = lake.attempt(), tmp_path / "model"
    key = key_of("", attempt.run.id)
    folder = tmp_path / "_retrofill" / f"model@{key}" / "w"
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "weights.bin").write_bytes(b"12345")
    seal([Written(folder, target, key, {})], attempt.launch.attempt_id)
    found = compared(lake, attempt, str(target))
    assert (found.after.rows, found.after.bytes, found.before) == (None, 5, None)
    with pytest.raises(UserError, match="which is not there"):
        compared(lake, attempt, str(tmp_path / "never"))
