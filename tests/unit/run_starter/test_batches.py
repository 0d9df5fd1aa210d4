"""Batches have adjacent intervals and consecutive places in the order of starts, and get smaller towards
the end of a backfill.
"""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.rows import a_run

from retrofill_core.store.claims import Waiting
from run_starter.claims.batches import batch_limit, batches, how_many

DAY = datetime(2024, 1, 1, tzinfo=UTC)


def row(day, position, days=1):
    start = DAY + timedelta(days=day)
    return a_run(position=position, interval_start=start, interval_end=start + timedelta(days=days))


def in_order(days, *, backwards=False):
    """Waiting runs of these days, in the order in which they start."""
    return [row(day, position) for position, day in enumerate(sorted(days, reverse=backwards))]


def days_of(made):
    return [[(each.interval_start - DAY).days for each in batch] for batch in made]


# which runs


@pytest.mark.parametrize(
    ("days", "backwards", "limit", "most", "expected"),
    [
        (range(5), False, 1, 9, [[0], [1], [2], [3], [4]]),
        (range(5), False, 2, 9, [[0, 1], [2, 3], [4]]),
        (range(5), True, 2, 9, [[4, 3], [2, 1], [0]]),
        (range(5), False, 9, 9, [[0, 1, 2, 3, 4]]),
        (range(5), False, 2, 1, [[0, 1]]),
        (range(5), False, 2, 2, [[0, 1], [2, 3]]),
        # Days 2 and 5 are not part of the backfill.
        ([0, 1, 3, 4, 6], False, 3, 9, [[0, 1], [3, 4], [6]]),
        ([0, 1, 3, 4, 6], True, 3, 9, [[6], [4, 3], [1, 0]]),
        ([0, 1, 3, 4, 6], False, 3, 1, [[0, 1]]),
        ([], False, 3, 3, []),
    ],
)
def test_the_next_runs_in_batches(days, backwards, limit, most, expected):
    assert days_of(batches(in_order(days, backwards=backwards), limit, most)) == expected


@pytest.mark.parametrize("backwards", [False, True])
def test_a_run_that_is_not_waiting_is_a_gap(backwards):
    """It runs or has ended: a batch across it would not follow the order of its intervals."""
    waiting = in_order(range(5), backwards=backwards)
    del waiting[2]
    assert [len(batch) for batch in batches(waiting, 9, 9)] == [2, 2]


def test_intervals_of_different_lengths_follow_one_another():
    months = [row(0, 0, days=31), row(31, 1, days=29), row(60, 2, days=31)]
    assert len(batches(months, 9, 9)) == 1
    assert len(batches([replace(each, position=2 - n) for n, each in enumerate(months)][::-1], 9, 9)) == 1


def test_runs_that_start_one_after_the_other_without_adjacent_intervals_are_no_batch():
    assert days_of(batches([row(0, 0), row(2, 1), row(3, 2)], 9, 9)) == [[0], [2, 3]]


def test_adjacent_intervals_that_do_not_start_one_after_the_other_are_no_batch():
    """The order of starts is kept in any case."""
    assert days_of(batches([row(0, 0), row(1, 2), row(2, 3)], 9, 9)) == [[0], [1, 2]]


def adjacent(one, other):
    touch = one.interval_end == other.interval_start or one.interval_start == other.interval_end
    return touch and other.position == one.position + 1


@given(
    days=st.sets(st.integers(0, 30)),
    started=st.sets(st.integers(0, 30)),
    backwards=st.booleans(),
    limit=st.integers(1, 6),
    most=st.integers(1, 8),
)
def test_batches_are_the_next_runs_within_the_limits_and_as_large_as_possible(days, started, backwards, limit, most):
    runs = [each for each in in_order(days, backwards=backwards) if each.position not in started]
    made = batches(runs, limit, most)
    chosen = [each for batch in made for each in batch]
    assert chosen == runs[: len(chosen)]
    assert len(made) == most or chosen == runs
    assert len(made) <= most
    for batch in made:
        assert 1 <= len(batch) <= limit
        assert all(adjacent(one, other) for one, other in itertools.pairwise(batch))
    for one, other in itertools.pairwise(made):
        assert len(one) == limit or not adjacent(one[-1], other[0])


# how many


@pytest.mark.parametrize(
    ("batch_size", "queued", "parallel", "limit"),
    [
        (10, 1000, 4, 10),
        (10, 80, 4, 10),
        (10, 73, 4, 10),
        (10, 72, 4, 9),
        (10, 40, 4, 5),
        (10, 9, 4, 2),
        (10, 8, 4, 1),
        (10, 1, 4, 1),
        (10, 0, 4, 1),
        (10, 20, 1, 10),
        (10, 3, 1, 2),
        (1, 1000, 4, 1),
    ],
)
def test_batches_get_smaller_towards_the_end(batch_size, queued, parallel, limit):
    assert batch_limit(batch_size, queued, parallel, "each") == limit


def test_how_many_wait_is_known_without_reading_them_all():
    waiting = in_order(range(30))
    assert how_many(Waiting([], 0), 5) == 0
    assert how_many(Waiting(waiting[:4], 29), 5) == 4
    assert how_many(Waiting(waiting[:5], 29), 5) == 30
    # The first one ended meanwhile, and so did some between.
    assert how_many(Waiting([waiting[3], waiting[7]], 29), 2) == 27


@given(batch_size=st.integers(1, 50), runs=st.integers(1, 500), parallel=st.integers(1, 20))
def test_all_drivers_work_until_the_end(batch_size, runs, parallel):
    """Each takes the next batch when it is free. If all runs take the same time, none is idle for longer
    than a run takes.
    """
    free_at, waiting = [0] * parallel, in_order(range(runs))
    while waiting:
        driver = free_at.index(min(free_at))
        (batch,) = batches(waiting, batch_limit(batch_size, len(waiting), parallel, "each"), 1)
        waiting = waiting[len(batch) :]
        free_at[driver] += len(batch)
    assert max(free_at) - min(free_at) <= 1
