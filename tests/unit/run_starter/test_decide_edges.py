"""Reports change runs and tasks only along their tables of edges, however batches are cut."""

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.run_starter.reported import MOST_LOST, beat, ended, fold_all, row, staged, task

from retrofill.domain.run import MACHINE as RUN
from retrofill.domain.run import RunState as R
from retrofill.domain.task_run import MACHINE as TASK
from retrofill.domain.task_run import TaskState as T
from run_starter.decide import RunOutcome, RunRow, fold

report_of = st.one_of(
    st.builds(beat, attempt=st.integers(1, 3)),
    st.builds(staged, attempt=st.integers(1, 3)),
    st.builds(task, st.sampled_from(T), st.sampled_from(["a", "b", "c"]), attempt=st.sampled_from([1, 2, 2, 2])),
    st.builds(
        ended, st.sampled_from(["succeeded", "failed", "cancelled", "lost", "released"]), st.sampled_from([1, 2, 2])
    ),
)
row_of = st.builds(row, st.sampled_from(R), lost=st.integers(0, 6), cancel=st.booleans(), started=st.booleans())


@settings(max_examples=400, deadline=None)
@given(
    of=row_of,
    reports=st.lists(report_of, max_size=12),
    tasks=st.fixed_dictionaries({"a": st.sampled_from(T), "b": st.sampled_from(T)}),
)
def test_no_batch_ever_leaves_the_tables_of_edges(of, reports, tasks):
    made = fold_all(reports, of, tasks)
    for outcome in made.runs.values():
        path = [of.state] + [R.RUNNING] * outcome.starts + [outcome.ends] * (outcome.ends is not None)
        assert all(RUN.allows(a, b) for a, b in itertools.pairwise(path)), path
        assert not (outcome.first_start and of.started_before)
    for name, state in tasks.items():
        at = state
        for step in made.tasks:
            if step.task == name:
                assert step.from_state == at
                assert TASK.allows(at, step.to)
                assert (step.run_id, step.attempt) == (7, of.attempt)
                at = step.to
    assert all(step.task in tasks for step in made.tasks)
    changed = len([step for step in made.tasks if step.announce])
    assert changed + len(made.ignored) <= len(reports)


@settings(max_examples=400, deadline=None)
@given(of=row_of, reports=st.lists(report_of, max_size=8), at=st.integers(0, 8))
@example(of=row("publishing"), reports=[ended("lost"), beat(), ended("lost")], at=1)
@example(of=row("publishing"), reports=[ended("cancelled"), task("queued", "a")], at=1)
def test_a_batch_cut_in_two_changes_the_same(of, reports, at):
    """The boundaries between batches must not matter: the second half is folded over the first
    half's result.
    """
    states = {(7, 2, "a"): T.NONE, (7, 2, "b"): T.QUEUED}
    whole = fold(reports, {7: of}, states, MOST_LOST)
    first = fold(reports[:at], {7: of}, states, MOST_LOST)
    one = first.runs.get(7, RunOutcome())
    now = one.ends or (R.PUBLISHING if one.stages else R.RUNNING if one.starts else of.state)
    between = RunRow(
        7,
        now,
        of.attempt,
        of.lost_attempts + one.counted,
        of.cancel_requested,
        of.started_before or one.starts,
        orphaned=of.orphaned or one.orphaned,
    )
    after = {**states, **{(step.run_id, step.attempt, step.task): step.to for step in first.tasks}}
    second = fold(reports[at:], {7: between}, after, MOST_LOST)
    two = second.runs.get(7, RunOutcome())
    assert first.tasks + second.tasks == whole.tasks
    assert first.ignored + second.ignored == whole.ignored or one.ends is not None
    all_at_once = whole.runs.get(7, RunOutcome())
    assert (one.ends or two.ends) == all_at_once.ends
    assert (one.starts or two.starts) == all_at_once.starts
    assert (one.counted or two.counted) == all_at_once.counted
