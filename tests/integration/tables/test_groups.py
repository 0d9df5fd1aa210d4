"""The runs of a range are published by one commit, and one that is refused fails alone."""

from __future__ import annotations

import pytest
from tests.support.lake import Attempt, Lake, Publisher

DAYS = 5


def staged(lake: Lake, days: int = DAYS, first: int = 1, **more: int) -> Attempt:
    """An attempt that has staged a row for each of some consecutive days."""
    attempt = lake.attempt(run_id=first, day=first, runs=days, **more)
    rows = attempt.rows(*((f"2013-01-{day:02}", day, f"of {day}") for day in range(first, first + days)))
    attempt.staging.tables.stage("a", attempt.spark, rows, lake.table, "day")
    attempt.outputs = attempt.staging.seal()
    return attempt


def test_a_range_is_one_commit_and_its_neighbours_stay(lake: Lake) -> None:
    neighbours = lake.attempt(run_id=90, day=9)
    neighbours.stage(lake.table, "neighbour", day="2013-01-09")
    neighbours.publish()
    attempt = staged(lake)
    versions = attempt.publish()
    assert lake.content() == [*(f"{day} of {day}" for day in range(1, DAYS + 1)), "9 neighbour"]
    assert (versions, lake.commits(), lake.staged()) == ([lake.version()] * DAYS, 2, [])


@pytest.mark.parametrize("stop", ["table:look", "table:commit", "table:drop"])
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


def test_a_publisher_of_a_range_whose_permission_ends_between_two_groups_leaves_the_rest(lake: Lake) -> None:
    first = staged(lake)
    first.permitted = False
    assert type(Publisher(first).finish()).__name__ == "NotPermitted"
    assert (lake.content(), lake.commits()) == ([], 0)
