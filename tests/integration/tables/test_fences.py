"""Publishers of tables that were stopped and wake up late change nothing, and say that they did not publish."""

from __future__ import annotations

import itertools

import pytest
from tests.support.lake import FORMATS, Lake, Publisher
from tests.support.tiers import some

STOPS = ("table:look", "table:commit", "table:drop")


def stopped(*chosen: tuple[str, str]) -> pytest.MarkDecorator:
    """Each format and place; ``make test`` runs only those in ``chosen``."""
    cases = some(itertools.product(FORMATS, STOPS), *chosen)
    return pytest.mark.parametrize(("lake", "stop"), cases, indirect=["lake"])


# A fence at the commit. Permission before that, the same in both formats, is in the next test.
@stopped(("iceberg", "table:commit"), ("delta", "table:commit"))
def test_a_publisher_woken_after_a_later_run_changes_nothing(lake: Lake, stop: str) -> None:
    first = lake.attempt(run_id=1)
    first.stage(lake.table, "first")
    former = Publisher(first).until(stop)
    # It was replaced, and the interval was processed again.
    Publisher(lake.attempt(run_id=1, attempt_id=50, number=1), of=first).finish()
    later = lake.attempt(run_id=2, attempt_id=60)
    later.stage(lake.table, "later")
    later.publish()
    first.permitted = False
    commits = lake.commits()
    error = former.finish()
    assert (lake.content(), lake.commits()) == (["1 later"], commits)
    # It had published before it was stopped, or it says that it has not.
    assert (error is None) == (stop == "table:drop"), error


@stopped(("iceberg", "table:commit"))
def test_a_publisher_is_replaced_by_another_of_the_same_run_and_wakes_up(lake: Lake, stop: str) -> None:
    attempt = lake.attempt()
    attempt.stage(lake.table, "a")
    former = Publisher(attempt).until(stop)
    other = Publisher(lake.attempt(attempt_id=50, number=1), of=attempt)
    assert other.finish() is None
    assert (lake.content(), lake.commits(), lake.staged()) == (["1 a"], 1, [])
    attempt.permitted = False
    former.finish()
    assert (lake.content(), lake.commits()) == (["1 a"], 1)


@pytest.mark.long
def test_a_publisher_of_rows_woken_after_a_later_run_without_any_changes_nothing(lake: Lake) -> None:
    """No commit has changed rows of the interval, so an Iceberg table itself would not refuse them."""
    first = lake.attempt(run_id=1)
    first.stage(lake.table, "first")
    former = Publisher(first).until("table:commit")
    later = lake.attempt(run_id=2)
    later.stage(lake.table)
    later.publish()
    first.permitted = False
    assert former.finish() is not None
    assert lake.content() == []


def test_a_former_run_that_is_not_permitted_any_more_does_not_try(lake: Lake) -> None:
    attempt = lake.attempt()
    attempt.stage(lake.table, "a")
    attempt.permitted = False
    assert type(Publisher(attempt).finish()).__name__ == "NotPermitted"
    assert (lake.content(), lake.commits()) == ([], 0)
