"""The runs of a range are published by one commit, and one that is refused fails alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from tests.support.lake import FORMATS, Attempt, Lake, PublicationFailed, Publisher
from tests.support.tiers import some

from retrofill.protocol.table_output import TableOutput

in_iceberg = pytest.mark.parametrize("lake", FORMATS, indirect=True)
STOPS = ("table:look", "table:commit", "table:drop")

DAYS = 5


def staged(lake: Lake, days: int = DAYS, first: int = 1, **more: int) -> Attempt:
    """An attempt that has staged a row for each of some consecutive days."""
    attempt = lake.attempt(run_id=first, day=first, runs=days, **more)
    rows = attempt.rows(*((f"2013-01-{day:02}", day, f"of {day}") for day in range(first, first + days)))
    attempt.staging.tables.stage("a", attempt.spark, rows, lake.table, "day")
    attempt.outputs = attempt.staging.seal()
    return attempt


@in_iceberg
def test_a_range_is_one_commit_and_its_neighbours_stay(lake: Lake) -> None:
    neighbours = lake.attempt(run_id=90, day=9)
    neighbours.stage(lake.table, "neighbour", day="2013-01-09")
    neighbours.publish()
    attempt = staged(lake)
    versions = attempt.publish()
    assert lake.content() == [*(f"{day} of {day}" for day in range(1, DAYS + 1)), "9 neighbour"]
    assert (versions, lake.commits(), lake.staged()) == ([lake.version()] * DAYS, 2, [])


# That permission is asked for, and that what is published is not dropped, is the same for a single run (test_fences.py).
# The two formats fence a group in different ways.
@pytest.mark.parametrize(
    ("lake", "stop"),
    some(itertools.product(FORMATS, STOPS), *((format, "table:commit") for format in FORMATS)),
    indirect=["lake"],
)
def test_a_publisher_of_a_range_that_wakes_up_after_a_later_run_changes_nothing(lake: Lake, stop: str) -> None:
    first = staged(lake)
    former = Publisher(first).until(stop)
    assert Publisher(staged_by(lake, first), of=first).finish() is None
    later = lake.attempt(run_id=60, day=3)
    later.stage(lake.table, "later", day="2013-01-03")
    later.publish()
    first.permitted = False
    former.finish()
    assert lake.content() == ["1 of 1", "2 of 2", "3 later", "4 of 4", "5 of 5"]
    assert lake.commits() == 2


def staged_by(lake: Lake, first: Attempt) -> Attempt:
    """The attempt that publishes what another staged."""
    return lake.attempt(run_id=first.run.id, attempt_id=50, number=1, runs=len(first.launch.runs))


@in_iceberg
def test_a_publisher_of_a_range_whose_permission_ends_between_two_groups_leaves_the_rest(lake: Lake) -> None:
    first = staged(lake)
    first.permitted = False
    assert type(Publisher(first).finish()).__name__ == "NotPermitted"
    assert (lake.content(), lake.commits()) == ([], 0)


@pytest.mark.long
@in_iceberg
def test_a_range_whose_staged_rows_are_gone_is_refused_at_once_and_nobody_publishes_it_later(lake: Lake) -> None:
    first = staged(lake)
    former = Publisher(first).until("table:commit")
    lake.spark.sql(f"DROP TABLE {lake.table.rpartition('.')[0]}.{lake.staged()[0]}").collect()
    error = Publisher(staged_by(lake, first), of=first).finish()
    assert isinstance(error, PublicationFailed)
    assert error.kind == "StagedOutputGone"
    former.finish()
    assert lake.content() == []


@pytest.mark.long
@in_iceberg
def test_days_of_a_range_that_somebody_changed_are_not_undone_and_the_others_are(lake: Lake) -> None:
    """The undone range was one commit, and the undo is one as far as it goes."""
    before = staged(lake)
    before.publish()
    wrong = lake.attempt(run_id=20, runs=DAYS)
    wrong.launch = replace(wrong.launch, backfill_id="wrong")
    rows = wrong.rows(*((f"2013-01-{day:02}", day, "wrong") for day in range(1, DAYS + 1)))
    wrong.staging.tables.stage("a", wrong.spark, rows, lake.table, "day")
    wrong.outputs = wrong.staging.seal()
    wrong.publish()
    undo = lake.attempt(run_id=40, runs=DAYS)
    runs = tuple(replace(run, restores=20 + n) for n, run in enumerate(undo.launch.runs))
    undo = Attempt(undo.sessions, replace(undo.launch, runs=runs))
    undo.staging.tables.restore("restore", undo.spark, undone(lake))
    undo.outputs = undo.staging.seal()
    lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE'2013-01-02', 7, 'somebody')").collect()
    publisher = Publisher(undo)
    publisher.finish()
    results = publisher.publication.results
    assert [getattr(results[id], "type", None) for id in range(40, 40 + DAYS)] == [None, "PublishedAgain", *[None] * 3]
    expected = [f"{day} of {day}" for day in range(1, DAYS + 1) if day != 2]
    assert lake.content() == sorted([*expected, "2 somebody", "2 wrong"])


def undone(lake: Lake) -> TableOutput:
    return TableOutput(lake.table, f"{lake.table}__gone", "day", "date", lake.format)
