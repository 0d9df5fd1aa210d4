"""Ranges: how they are formed, what becomes of their runs when they fail, and how few attempts find
the intervals that fail.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.rows import NOW, a_run
from tests.unit.run_starter.reported import ERROR, attempt, began, ended, fold, fold_of, over, run, staged

from retrofill.states import LAST_RANGE, AttemptMode, AttemptOutcome
from retrofill_core.domain.run import RunState as R
from run_starter.claims.batches import batch_limit, batches, mode_of
from run_starter.reports.steps import SILENT, AwaitPublisher, Begin, End, Loss, Requeue, Split

RANGE = AttemptMode.RANGE
IDS = (7, 8, 9, 10, 11)


def of_five(**more):
    return attempt(mode=RANGE, runs=5, **more)


def last_steps(made):
    return {id: taken[-1] for id, taken in made.runs.items()}


@pytest.mark.parametrize("suspect", [False, True])
@pytest.mark.parametrize("how", ["failed", "lost"])
def test_a_range_that_failed_or_was_lost_is_split_and_nothing_counts(how, suspect):
    """The parts of a lost one are suspects, and those of one that failed by itself are not."""
    made = fold([over(how, error=ERROR)], [run(id=id, suspect=suspect) for id in IDS], [of_five()])
    losses = (Loss(2, "no disk", counted=False),) if how == "lost" else ()
    size = 2 if how == "lost" else 1
    assert last_steps(made) == dict.fromkeys(IDS, Split(size, ERROR, losses, suspect=how == "lost"))
    assert made.attempts[5].outcome == AttemptOutcome(how)


@pytest.mark.parametrize(("size", "how", "next_size"), [(13, "failed", 6), (12, "failed", 1), (12, "lost", 6)])
def test_a_small_range_that_failed_is_tried_one_by_one(size, how, next_size):
    ids = range(7, 7 + size)
    made = fold([over(how, error=ERROR)], [run(id=id) for id in ids], [attempt(mode=RANGE, runs=size)])
    assert {step.size for step in last_steps(made).values()} == {next_size}


def test_a_range_that_was_released_is_queued_as_it_was():
    made = fold([over("released", error=ERROR)], [run(id=id) for id in IDS], [of_five()])
    assert last_steps(made) == dict.fromkeys(IDS, Requeue(ERROR, (), counted=False))


@pytest.mark.parametrize("how", ["failed", "lost", "released", "done"])
def test_a_range_that_is_cancelled_ends(how):
    made = fold([over(how, error=ERROR)], [run(id=id) for id in IDS], [of_five(cancel=True)])
    assert {step.state for step in last_steps(made).values()} == {R.CANCELLED}


def test_splitting_ends_where_output_was_accepted():
    runs = [run(R.PUBLISHING, id=7), run(id=8)]
    made = fold([over("lost", error=ERROR)], runs, [attempt(mode=RANGE, runs=2)])
    first, second = last_steps(made).values()
    losses = (Loss(2, "no disk", counted=False),)
    assert isinstance(first, AwaitPublisher) and second == Split(1, ERROR, losses, suspect=True)


def test_the_host_of_a_lost_driver_knows_only_that_the_range_had_begun():
    """Every run of it may have been executed, so each has begun."""
    waiting = [run(R.STARTING, id=id) for id in IDS]
    made = fold([over("lost", begun=7, error=ERROR)], waiting, [of_five(began=False)])
    assert {id: [type(step) for step in taken] for id, taken in made.runs.items()} == {id: [Begin, Split] for id in IDS}


def test_so_it_is_with_a_range_that_fell_silent():
    made = fold_of([run(R.STARTING, id=id) for id in IDS], [of_five(began=False)]).lose(5, SILENT)
    losses = (Loss(3, SILENT.message, counted=False),)
    assert last_steps(made) == dict.fromkeys(IDS, Split(2, SILENT, losses, suspect=True))


def test_a_range_that_had_not_begun_is_queued_as_it_was():
    made = fold([over("lost", error=ERROR)], [run(R.STARTING, id=id) for id in IDS], [of_five(began=False)])
    assert last_steps(made) == dict.fromkeys(IDS, Requeue(None, (), counted=False))


def test_the_runs_of_a_range_are_staged_and_end_one_by_one():
    reports = [began(7), began(8), staged(7), staged(8), ended("succeeded", 7), ended("failed", 8, error=ERROR), over()]
    made = fold(reports, [run(R.STARTING, id=7), run(R.STARTING, id=8)], [attempt(mode=RANGE, runs=2, began=False)])
    assert [step.state for step in last_steps(made).values() if isinstance(step, End)] == [R.SUCCEEDED, R.FAILED]
    assert made.attempts[5].outcome == AttemptOutcome.DONE and made.ignored == []


def rows(limits):
    return [a_run(position=n, range_limit=limit) for n, limit in enumerate(limits)]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ([None] * 5, [5]),
        ([2] * 5, [2, 2, 1]),
        ([None, None, 2, 2, None], [2, 2, 1]),
        ([1, None, None, 1], [1, 2, 1]),
        ([1] * 14, [12, 2]),
        ([2, 1, 1, 2, 2], [1, 2, 2]),
        ([3, 3, None, 2, 2], [3, 2]),
    ],
)
def test_a_range_obeys_the_smallest_limit_of_its_runs(limits, sizes):
    assert [len(batch) for batch in batches(rows(limits), 100, 100)] == sizes


def suspects(attempts):
    """Adjacent suspects that each were last part of one of these attempts."""
    return [a_run(position=n, range_limit=2, lost_at=NOW, attempt_id=attempt) for n, attempt in enumerate(attempts)]


def test_suspects_that_were_lost_with_a_batch_are_alone():
    """The run under way, and the next one, which may have begun unheard."""
    assert [len(batch) for batch in batches([replace(row, range_limit=None) for row in suspects([1, 1])], 9, 9)] == [
        1,
        1,
    ]


def test_suspects_that_may_be_part_of_no_range_are_alone():
    assert [len(batch) for batch in batches([replace(row, range_limit=1) for row in suspects([1, 1])], 9, 9)] == [1, 1]


@pytest.mark.parametrize(
    ("attempts", "sizes"),
    [([1, 1, 1], [2, 1]), ([1, 2, 2], [1, 2]), ([1, 2, 3], [1, 1, 1]), ([1, 1, 2, 2], [2, 2])],
)
def test_suspects_are_only_together_with_those_of_the_same_lost_range(attempts, sizes):
    assert [len(batch) for batch in batches(suspects(attempts), 100, 100)] == sizes


def test_a_range_of_one_run_is_none():
    assert [mode_of("range", rows([None] * n)) for n in (1, 2)] == [AttemptMode.EACH, RANGE]
    assert mode_of("each", rows([None, None])) == AttemptMode.EACH
    assert mode_of("range", rows([1, 1])) == AttemptMode.EACH


@settings(max_examples=40)
@given(st.integers(1, 400), st.sets(st.integers(0, 399), max_size=4), st.integers(1, 4))
def test_the_intervals_that_fail_are_found_with_few_attempts(count, bad, drivers):
    """Ranges are tried and split until each run has succeeded, or failed alone."""
    bad = {n for n in bad if n < count}
    waiting, failed, attempts = rows([None] * count), set(), 0
    while waiting:
        (batch,) = batches(waiting, batch_limit(1000, len(waiting), drivers, "range"), 1)
        attempts += 1
        waiting = [row for row in waiting if row not in batch]
        if not any(row.position in bad for row in batch):
            continue
        if mode_of("range", batch) == RANGE:
            size = len(batch) // 2 if len(batch) > LAST_RANGE else 1
            again = [replace(row, range_limit=size) for row in batch]
        else:
            # The attempt ends with the run that failed.
            first = next(n for n, row in enumerate(batch) if row.position in bad)
            failed.add(batch[first].position)
            again = batch[first + 1 :]
        waiting = sorted([*waiting, *again], key=lambda row: row.position)
    assert failed == bad
    depth = count.bit_length()
    # Without a bad one, as many as there are drivers, and a few for what is left over.
    assert attempts <= drivers * depth + len(bad) * 3 * depth + 1
