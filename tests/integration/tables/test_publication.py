"""Staged tables: invisible before acceptance, whole after, once, whoever publishes them."""

from __future__ import annotations

from tests.support.lake import Lake


def test_rows_are_invisible_until_they_are_published_and_replace_those_of_the_day(lake: Lake) -> None:
    first = lake.attempt(run_id=1)
    first.stage(lake.table, "a", "b")
    assert (lake.content(), len(lake.staged())) == ([], 1)
    first.publish()
    assert (lake.content(), lake.staged()) == (["1 a", "1 b"], [])
    other = lake.attempt(run_id=2, day=2)
    other.stage(lake.table, "c", day="2013-01-02")
    other.publish()
    again = lake.attempt(run_id=3)
    again.stage(lake.table, "d")
    assert lake.content() == ["1 a", "1 b", "2 c"]
    again.publish()
    assert lake.content() == ["1 d", "2 c"]


def test_an_interval_that_became_empty_loses_its_rows(lake: Lake) -> None:
    for run, notes in enumerate((["a"], [], []), 1):
        attempt = lake.attempt(run_id=run)
        attempt.stage(lake.table, *notes)
        attempt.publish()
        assert lake.content() == [f"1 {note}" for note in notes]
    assert lake.commits() == 3
