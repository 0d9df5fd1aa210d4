"""Rows that may be staged for a table, and those that are refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.lake import FORMATS, PATH, Lake, Publisher
from tests.support.tiers import some

from retrofill.outputs.cannot_stage import CannotStage, DoesNotFit, NoSuchColumn, NoSuchTable, OtherInterval
from retrofill.outputs.staging import Staging


def test_a_later_task_reads_what_is_staged(lake: Lake) -> None:
    attempt = lake.attempt()
    with pytest.raises(CannotStage, match=r"no task of this run has staged .*: read the table itself instead"):
        attempt.staging.tables.staged(attempt.spark, lake.table)
    attempt.stage(lake.table, "a", "b")
    assert attempt.staging.tables.staged(attempt.spark, lake.table).count() == 2


def test_what_a_try_has_staged_is_replaced_by_the_next_one_and_dropped_with_a_failed_attempt(lake: Lake) -> None:
    lost = lake.attempt()
    lost.stage(lake.table, "lost")
    attempt = lake.attempt()
    attempt.stage(lake.table, "first try")
    attempt.stage(lake.table, "second try")
    assert len(lake.staged()) == 1
    assert [row.note for row in attempt.staging.tables.staged(attempt.spark, lake.table).collect()] == ["second try"]
    with pytest.raises(CannotStage, match=r"task 'a' already stages .*: only one task may write a table"):
        attempt.staging.tables.stage("b", attempt.spark, attempt.rows(), lake.table, "day")
    attempt.staging.discard()
    assert (lake.staged(), lake.content()) == ([], [])


def refused(lake: Lake, error: type[CannotStage], words: str, rows: Any, **more: str) -> None:
    """Staging is refused with one line, and nothing is left."""
    attempt = lake.attempt()
    with pytest.raises(error, match=words) as caught:
        attempt.staging.tables.stage("a", lake.spark, rows, more.get("table", lake.table), more.get("column", "day"))
    assert len(str(caught.value).splitlines()) == 1
    assert attempt.staging.seal() == {}
    attempt.staging.discard()
    assert lake.staged() == []


def test_what_does_not_fit_is_refused_in_one_line(lake: Lake) -> None:
    rows = lake.attempt().rows(("2013-01-01", 1, "a"))
    refused(lake, NoSuchTable, r"table lake\.db\.none does not exist: create it first", rows, table="lake.db.none")
    refused(lake, NoSuchTable, "'a b.' is not the name of a table", rows, table="a b.")
    refused(lake, NoSuchColumn, "has no column 'hour': name the one that tells", rows, column="hour")
    refused(lake, NoSuchColumn, "column 'n' is of type bigint, which tells no interval", rows, column="n")
    refused(
        lake, NoSuchColumn, "has no column 'more': add it to the table, or drop it", rows.selectExpr("*", "1 AS more")
    )
    refused(lake, DoesNotFit, "the rows have no column 'note' of .*: add it, with null", rows.drop("note"))
    text = rows.selectExpr("day", "'x' AS n", "note")
    refused(lake, DoesNotFit, "column 'n' is STRING in the rows, but BIGINT in .*: cast it", text)
    null = rows.selectExpr("day", "if(n = 0, n, null) AS n", "note")
    refused(lake, DoesNotFit, "a row for .* has no n: the table needs one", null)


def test_a_row_of_another_interval_is_refused_with_its_value(lake: Lake) -> None:
    rows = lake.attempt().rows(("2013-01-01", 1, "a"), ("2013-01-02", 2, "b"))
    refused(
        lake,
        OtherInterval,
        r"has day = 2013-01-02, outside of the interval 2013-01-01",
        rows,
    )
    refused(lake, DoesNotFit, "a row for .* has no day", lake.attempt().rows((None, 1, "a")))


@pytest.mark.parametrize("lake", some([*FORMATS, PATH], "iceberg"), indirect=True)
def test_a_range_stages_once_and_is_published_by_one_commit(lake: Lake) -> None:
    before = lake.attempt(run_id=1, day=2)
    before.stage(lake.table, "old", day="2013-01-02")
    before.publish()
    attempt = lake.attempt(run_id=5, runs=3)
    rows = attempt.rows(("2013-01-01", 1, "a"), ("2013-01-03", 3, "c"))
    attempt.staging.tables.stage("a", attempt.spark, rows, lake.table, "day")
    attempt.outputs = attempt.staging.seal()
    assert (sorted(attempt.outputs), len(lake.staged())) == ([5, 6, 7], 1)
    attempt.publish()
    assert (lake.content(), lake.commits(), lake.staged()) == (["1 a", "3 c"], 2, [])


@pytest.mark.long
def test_the_table_of_a_range_stays_until_all_its_runs_are_published(lake: Lake) -> None:
    ranged = lake.attempt(run_id=5, runs=3)
    ranged.staging.tables.stage(
        "a", ranged.spark, ranged.rows(("2013-01-01", 1, "a"), ("2013-01-03", 3, "c")), lake.table, "day"
    )
    ranged.outputs = ranged.staging.seal()
    # The first run's publication failed, and it was retried.
    again = lake.attempt(run_id=8)
    again.launch = replace(again.launch, unpublished=(ranged.launch.attempt_id,))
    again.staging = Staging(again.launch, again.piece)
    again.stage(lake.table, "again")
    assert len(lake.staged()) == 2
    again.publish()
    later = lake.attempt(run_id=5, runs=3, number=1)
    later.outputs = ranged.outputs
    later.launch = replace(later.launch, runs=later.launch.runs[1:])
    later.publish(ranged.launch.attempt_id)
    assert lake.content() == ["1 again", "3 c"]
    # Only what nobody publishes from is left, for the next attempt.
    last = lake.attempt(run_id=9)
    last.stage(lake.table, "last")
    assert len(lake.staged()) == 1


def test_two_tables_of_an_attempt_are_both_published_though_the_first_publisher_is_lost_between(lake: Lake) -> None:
    other = lake.create(f"{lake.table}_other")
    attempt = lake.attempt()
    for table in (lake.table, other):
        attempt.stage(table, "a")
    Publisher(attempt).finish()
    assert (lake.content(), lake.content(other)) == (["1 a"], [])
    second = lake.attempt(attempt_id=50, number=1)
    second.outputs = attempt.outputs
    second.publish(attempt.launch.attempt_id)
    assert (lake.content(), lake.content(other), lake.commits()) == (["1 a"], ["1 a"], 1)


def test_a_staged_table_that_somebody_dropped_is_not_called_published(lake: Lake) -> None:
    attempt = lake.attempt()
    attempt.stage(lake.table, "a")
    attempt.staging.discard()
    error = Publisher(attempt).finish()
    assert "the rows that attempt 1 staged for" in str(error)
    assert lake.content() == []


@pytest.mark.long
@pytest.mark.parametrize("lake", [PATH], indirect=True)
def test_a_delta_table_may_be_named_by_its_path(lake: Lake) -> None:
    for run, note in enumerate(("a", "b"), 1):
        attempt = lake.attempt(run_id=run)
        attempt.stage(lake.table, note)
        assert len(lake.staged()) == 1
        attempt.publish()
        assert (lake.content(), lake.staged()) == ([f"1 {note}"], [])
