"""Reports change attempts, runs and tasks only along their tables of edges, however batches are cut."""

import itertools
from collections import Counter
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.rows import NOW
from tests.unit.run_starter.reported import (
    attempt,
    attempts_after,
    beat,
    began,
    ended,
    over,
    path,
    put_off,
    rows_after,
    run,
    staged,
    task,
)

from retrofill.states import TASK_RUN_MACHINE as TASK
from retrofill.states import AttemptMode
from retrofill.states import TaskState as T
from retrofill_core.domain.run import LIVE, UNFINISHED
from retrofill_core.domain.run import MACHINE as RUN
from retrofill_core.domain.run import RunState as R
from retrofill_core.store.rows import Attempt, Run
from run_starter.reports.decide import Fold
from run_starter.reports.steps import SILENT, Begin

RUNS, ATTEMPTS = (1, 2, 3), (5, 6)
run_ids, attempt_ids = st.sampled_from(RUNS), st.sampled_from([5, 5, 5, 6, 9])
report_of = st.one_of(
    st.builds(beat, attempt_ids),
    st.builds(began, run_ids, attempt_ids),
    st.builds(staged, run_ids, attempt_ids),
    st.builds(task, st.sampled_from(T), st.sampled_from(["a", "b", "c"]), run_ids, attempt_ids),
    st.builds(put_off, run_ids, attempt_ids),
    st.builds(ended, st.sampled_from(["succeeded", "failed"]), run_ids, attempt_ids),
    st.builds(over, st.sampled_from(["done", "lost", "released"]), attempt_ids, st.one_of(st.none(), run_ids)),
)


@st.composite
def situations(draw):
    """Attempts and runs as they may be in Postgres: a live run has a live attempt, and one that was
    accepted or runs has begun.
    """
    attempts, runs = {}, {}
    for id in ATTEMPTS:
        attempts[id] = attempt(id, live=draw(st.booleans()), began=draw(st.booleans()), cancel=draw(st.booleans()))
    for id in RUNS:
        of, state = draw(st.sampled_from([None, *ATTEMPTS])), draw(st.sampled_from(R))
        if state in LIVE and (of is None or not attempts[of].live):
            state = R.QUEUED
        if state in (R.RUNNING, R.PUBLISHING):
            attempts[of] = replace(attempts[of], began_at=NOW)
        number = draw(st.integers(0 if state in (R.QUEUED, R.STARTING, R.CANCELLED) else 1, 3))
        # The present one is not lost; publishers may be lost without another begin.
        lost = draw(st.integers(0, number - (state == R.RUNNING) + 2 * (state in (R.PUBLISHING, R.STAGED))))
        suspect = state in UNFINISHED and (lost > 0 or draw(st.booleans()))
        runs[id] = run(state, id, of=of, number=number, lost=lost, before=number > 0, suspect=suspect)
    for id in ATTEMPTS:
        of_live = {row.state for row in runs.values() if row.attempt_id == id and row.state in LIVE}
        if of_live <= {R.PUBLISHING} and draw(st.booleans()):
            attempts[id] = replace(attempts[id], mode=AttemptMode.PUBLISH)
    tasks = {
        (id, row.attempt, name): draw(st.sampled_from(T))
        for id, row in runs.items()
        if row.state != R.STARTING
        for name in ("a", "b")
    }
    return attempts, runs, tasks


def names_of(runs):
    return {id: ("a", "b") for id, row in runs.items() if row.state == R.STARTING}


BATCH: tuple[dict[int, Attempt], dict[int, Run], dict[tuple[int, int, str], T]] = (
    {5: attempt(5), 6: attempt(6, live=False)},
    {1: run(R.PUBLISHING, 1), 2: run(R.RUNNING, 2), 3: run(R.STARTING, 3)},
    {},
)


@settings(max_examples=150, deadline=None)
@given(situation=situations(), reports=st.lists(report_of, max_size=12))
@example(situation=BATCH, reports=[over("lost", 5, 3), ended("succeeded", 2, 5)])
@example(situation=BATCH, reports=[staged(2, 5), over("done", 5)])
def test_no_batch_ever_leaves_the_tables_of_edges(situation, reports):
    attempts, runs, tasks = situation
    made = Fold(attempts, runs, tasks, names_of(runs), 3).reports(reports)
    for id, taken in made.runs.items():
        states = path(runs[id], taken)
        assert all(RUN.allows(a, b) for a, b in itertools.pairwise(states)), states
        assert attempts[runs[id].attempt_id].live, "another attempt's report must not change it"
        starts = [step for step in taken if isinstance(step, Begin)]
        assert [step.first for step in starts] == [runs[id].started_at is None] * len(starts)
    after, later = rows_after(runs, made), attempts_after(attempts, made)
    for id, row in after.items():
        if row.state in LIVE:
            assert later[row.attempt_id].live, f"run {id} is {row.state}, and its attempt is over"
        if row.state in (R.RUNNING, R.PUBLISHING):
            assert later[row.attempt_id].began_at
        if row.state == R.QUEUED and row.lost_attempts > runs[id].lost_attempts:
            assert row.lost_attempts < 3, "after that loss, it must not go on"
        if row.state == R.QUEUED:
            assert row.lost_attempts <= row.attempt, "only what has begun can be lost"
    assert all(attempts[id].live for id in [*made.attempts, *made.began, *made.alive])
    at = dict(tasks)
    for step in made.tasks:
        key = (step.run_id, step.attempt, step.task)
        assert step.from_state == at.get(key, T.NONE)
        assert TASK.allows(step.from_state, step.to)
        assert (step.task in ("a", "b"), step.attempt) == (True, after[step.run_id].attempt)
        at[key] = step.to
    changed = len([step for step in made.tasks if step.announce])
    assert changed + len(made.ignored) <= len(reports)


@settings(max_examples=150, deadline=None)
@given(situation=situations(), reports=st.lists(report_of, max_size=10), at=st.integers(0, 10))
@example(situation=BATCH, reports=[over("lost", 5), beat(5), over("lost", 5)], at=1)
@example(situation=BATCH, reports=[staged(2, 5), over("lost", 5, 3)], at=1)
@example(situation=BATCH, reports=[task("running", "a", 3, 5), task("succeeded", "a", 3, 5), over("done", 5)], at=1)
def test_a_batch_cut_in_two_changes_the_same(situation, reports, at):
    """The boundaries between batches must not matter: the second half is folded over the first
    half's result.
    """
    attempts, runs, tasks = situation
    whole = Fold(attempts, runs, tasks, names_of(runs), 3).reports(reports)
    first = Fold(attempts, runs, tasks, names_of(runs), 3).reports(reports[:at])
    between, and_attempts = rows_after(runs, first), attempts_after(attempts, first)
    begun = {
        (id, between[id].attempt, name): T.NONE
        for id, taken in first.runs.items()
        if isinstance(taken[0], Begin)
        for name in ("a", "b")
    }
    moved = {(step.run_id, step.attempt, step.task): step.to for step in first.tasks}
    second = Fold(and_attempts, between, tasks | begun | moved, names_of(between), 3).reports(reports[at:])
    assert rows_after(between, second) == rows_after(runs, whole)
    assert attempts_after(and_attempts, second) == attempts_after(attempts, whole)
    assert first.attempts | second.attempts == whole.attempts
    assert first.tasks + second.tasks == whole.tasks
    assert first.ignored + second.ignored == whole.ignored


@settings(max_examples=80, deadline=None)
@given(situation=situations(), silent=st.lists(st.sampled_from(ATTEMPTS), unique=True))
@example(situation=BATCH, silent=[5])
def test_silent_attempts_end_with_their_runs_and_at_most_one_run_of_each_may_have_begun(situation, silent):
    attempts, runs, _ = situation
    fold, silent = Fold(attempts, runs, {}, names_of(runs), 3), [id for id in silent if attempts[id].live]
    for id in silent:
        fold.lose(id, SILENT)
    made = fold.outcome
    assert (list(made.attempts), made.alive, made.tasks) == (silent, {}, [])
    for id, row in rows_after(runs, made).items():
        states = path(runs[id], made.runs.get(id, []))
        assert all(RUN.allows(a, b) for a, b in itertools.pairwise(states)), states
        lost = runs[id].state in LIVE and runs[id].attempt_id in silent
        assert (row == runs[id], row.state in LIVE) == (not lost, runs[id].state in LIVE and not lost)
        executed = lost and not {R.RUNNING, R.PUBLISHING}.isdisjoint(states)
        counts = executed and not attempts[runs[id].attempt_id].cancelled
        assert row.lost_attempts == runs[id].lost_attempts + (counts and runs[id].lost_at is not None)
        if row.state in (R.QUEUED, R.STAGED):
            assert (row.lost_at is not None) == (counts or runs[id].lost_at is not None)
    begun = Counter(runs[id].attempt_id for id, _ in made.steps(Begin))
    waiting = {row.attempt_id for row in runs.values() if row.state == R.STARTING} & set(silent)
    assert begun == Counter(waiting)
