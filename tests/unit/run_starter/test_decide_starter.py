"""Reports change runs and tasks only along their tables of edges."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrofill.contract.runs import ErrorInfo, RunHeartbeat, RunReported, RunStaged, TaskReported
from retrofill.domain.run import LIVE
from retrofill.domain.run import MACHINE as RUN
from retrofill.domain.run import RunState as R
from retrofill.domain.task_run import MACHINE as TASK
from retrofill.domain.task_run import TaskState as T
from run_starter.decide import RunOutcome, RunRow, fold, lose
from run_starter.losses import Loss, failure, losses_of, stored, with_loss

# reports

MOST_LOST = 5
ERROR = ErrorInfo(type="E", message="no disk")


def row(state=R.RUNNING, attempt=2, *, lost=0, cancel=False, started=True):
    return RunRow(7, R(state), attempt, lost, cancel, started)


def beat(attempt=2):
    return RunHeartbeat(backfill_id="b", run_id=7, attempt=attempt)


def task(state, name="t", attempt=2, **more):
    return TaskReported(backfill_id="b", run_id=7, attempt=attempt, task=name, state=state, **more)


def staged(attempt=2, publication=0):
    return RunStaged(backfill_id="b", run_id=7, attempt=attempt, publication=publication, outputs=("/o",))


def ended(state, attempt=2, error=None):
    return RunReported(backfill_id="b", run_id=7, attempt=attempt, state=state, error=error)


def fold_all(reports, of=None, tasks=None, most=MOST_LOST):
    of = of or row()
    states = {(7, of.attempt, name): T(state) for name, state in (tasks or {"t": "none"}).items()}
    return fold(reports, {7: of}, states, most)


REPORTS = {
    "heartbeat": beat,
    "task": lambda attempt: task("queued", attempt=attempt),
    "staged": staged,
    **{
        how: (lambda attempt, how=how: ended(how, attempt, ERROR))
        for how in ("succeeded", "failed", "cancelled", "lost", "released")
    },
}


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("attempt", [1, 2, 3])
@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("state", R)
def test_one_report_in_each_state(state, report, attempt, cancel):
    made = fold_all([REPORTS[report](attempt)], row(state, cancel=cancel, started=False))
    loss = report in ("cancelled", "lost", "released")
    if attempt != 2 or state not in LIVE:
        assert made.runs == {}
        assert made.tasks == []
        assert len(made.ignored) == 1
        return
    assert made.ignored == []
    outcome = made.runs[7]
    assert outcome.alive == (report in ("heartbeat", "staged"))
    assert outcome.stages == (("/o",) if report == "staged" and state != R.PUBLISHING else ())
    assert (
        outcome.starts
        == outcome.first_start
        == (state == R.STARTING and report in ("heartbeat", "task", "staged", "succeeded", "failed"))
    )
    expected = {"heartbeat": None, "task": None, "staged": None, "succeeded": R.SUCCEEDED, "failed": R.FAILED}
    # An accepted run is not executed again, and a cancel does not revoke it.
    after_a_loss = None if state == R.PUBLISHING else R.CANCELLED if cancel else R.QUEUED
    assert outcome.ends == expected.get(report, after_a_loss)
    assert outcome.orphaned == (loss and state == R.PUBLISHING)
    assert outcome.lost == loss
    assert outcome.counted == (report in ("cancelled", "lost"))
    assert outcome.error == (ERROR if report == "failed" else None)
    assert [(step.task, step.from_state, step.to) for step in made.tasks] == (
        [("t", "none", "queued")] if report == "task" else []
    )


@pytest.mark.parametrize("started", [False, True])
def test_the_first_start_is_told_from_later_ones(started):
    outcome = fold_all([beat()], row(R.STARTING, started=started)).runs[7]
    assert (outcome.starts, outcome.first_start) == (True, not started)


def test_a_run_starts_once_in_a_batch_and_not_again_when_it_runs():
    made = fold_all([beat(), beat(), beat()], row(R.STARTING))
    assert made.runs == {7: RunOutcome(starts=True, alive=True)}
    assert fold_all([beat(), beat()], row(R.RUNNING)).runs == {7: RunOutcome(alive=True)}


@pytest.mark.parametrize("name", ["t", "elsewhere"])
def test_a_report_of_any_task_starts_the_run_but_extends_no_lease(name):
    """A short run sends no heartbeat."""
    reports = [task("running", name), task("succeeded", name)]
    started = fold_all(reports, row(R.STARTING, started=False))
    assert started.runs == {7: RunOutcome(starts=True, first_start=True, alive=False)}
    assert fold_all(reports, row(R.RUNNING)).runs == {7: RunOutcome()}
    ended_too = fold_all([*reports, ended("succeeded")], row(R.STARTING)).runs
    assert ended_too == {7: RunOutcome(starts=True, ends=R.SUCCEEDED)}


@pytest.mark.parametrize("old", [1, 3])
def test_a_task_of_another_attempt_starts_nothing(old):
    assert fold_all([task("running", attempt=old)], row(R.STARTING)).runs == {}


def test_a_whole_attempt_in_one_batch():
    made = fold_all(
        [
            beat(),
            task("running", "a"),
            task("succeeded", "a"),
            task("running", "b"),
            beat(),
            task("succeeded", "b"),
            ended("succeeded"),
        ],
        row(R.STARTING, started=False),
        {"a": "none", "b": "none"},
    )
    assert made.runs == {7: RunOutcome(starts=True, first_start=True, alive=True, ends=R.SUCCEEDED)}
    assert [(step.task, step.from_state, step.to, step.announce) for step in made.tasks] == [
        ("a", "none", "queued", False),
        ("a", "queued", "running", True),
        ("a", "running", "succeeded", True),
        ("b", "none", "queued", False),
        ("b", "queued", "running", True),
        ("b", "running", "succeeded", True),
    ]
    assert made.ignored == []


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "lost", "released"])
@pytest.mark.parametrize("later", REPORTS)
def test_what_comes_after_the_end_in_one_batch_changes_nothing(end, later):
    one = fold_all([ended(end)])
    both = fold_all([ended(end), REPORTS[later](2)])
    assert both.runs == one.runs
    assert both.tasks == []
    assert len(both.ignored) == 1


@pytest.mark.parametrize("old", [1, 3])
def test_reports_of_another_attempt_change_nothing_whatever_surrounds_them(old):
    others = [make(old) for make in REPORTS.values()]
    own = [beat(), task("running"), ended("lost")]
    mixed = [report for each in own for report in (*others, each)] + others
    made, alone = fold_all(mixed), fold_all(own)
    assert (made.runs, made.tasks) == (alone.runs, alone.tasks)
    assert len(made.ignored) == 4 * len(others)


def test_runs_of_one_batch_do_not_mix():
    other = RunReported(backfill_id="b", run_id=8, attempt=1, state="failed")
    rows = {7: row(), 8: RunRow(8, R.STARTING, 1, 0, False, False)}
    made = fold([other, beat()], rows, {}, MOST_LOST)
    assert made.runs[7] == RunOutcome(alive=True)
    assert made.runs[8] == RunOutcome(starts=True, first_start=True, ends=R.FAILED)


@pytest.mark.parametrize("from_state", T)
@pytest.mark.parametrize("to", T)
def test_one_step_of_a_task(from_state, to):
    made = fold_all([task(to, try_number=3, error=ERROR)], tasks={"t": from_state})
    steps = [(step.from_state, step.to, step.announce, step.error) for step in made.tasks]
    if (from_state, to) == (T.NONE, T.RUNNING):
        assert steps == [(T.NONE, T.QUEUED, False, None), (T.QUEUED, T.RUNNING, True, ERROR)]
    elif TASK.allows(from_state, to):
        assert steps == [(from_state, to, True, ERROR)]
        assert made.tasks[0].try_number == 3
    else:
        assert steps == []
        assert made.ignored[0][1] == f"the task is {from_state}"


@pytest.mark.parametrize("state", ["running", "retrying", "succeeded", "failed"])
@pytest.mark.parametrize("skip", ["skipped", "upstream_failed"])
def test_a_skip_never_overwrites_what_has_begun(state, skip):
    assert fold_all([task(skip)], tasks={"t": state}).tasks == []


def test_a_skip_does_not_overwrite_a_start_of_the_same_batch():
    made = fold_all([task("running"), task("skipped"), task("succeeded")])
    assert [step.to for step in made.tasks] == ["queued", "running", "succeeded"]
    assert len(made.ignored) == 1


def test_retries_go_round():
    made = fold_all([task("running"), task("retrying"), task("running", try_number=2), task("failed", try_number=2)])
    assert [step.to for step in made.tasks] == ["queued", "running", "retrying", "running", "failed"]
    assert [step.try_number for step in made.tasks] == [1, 1, 1, 2, 2]


def test_a_task_that_the_run_does_not_have_is_left_out():
    made = fold_all([task("running", "elsewhere")])
    assert made.tasks == []
    assert "elsewhere" in made.ignored[0][1]


# losses


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("lost", range(7))
def test_what_a_loss_leads_to(lost, cancel, counted):
    outcome = RunOutcome()
    lose(row(lost=lost, cancel=cancel), outcome, MOST_LOST, counted=counted, error=ERROR)
    if cancel:
        expected = R.CANCELLED
    elif counted and lost + 1 >= MOST_LOST:
        expected = R.FAILED
    else:
        expected = R.QUEUED
    assert (outcome.ends, outcome.lost, outcome.counted) == (expected, True, counted)
    assert (outcome.error is not None) == (expected == R.FAILED)


def test_the_last_loss_tells_how_each_attempt_was_lost():
    reasons = ["ended by signal 9", "no disk", "no disk", "its lease ended"]
    before = tuple(Loss(attempt, reason) for attempt, reason in enumerate(reasons, 1))
    of = replace(row(attempt=5, lost=4), losses=before)
    outcome = fold_all([ended("lost", 5, error=ERROR)], of).runs[7]
    fields = "attempt 1: ended by signal 9; attempts 2 to 3: no disk; attempt 4: its lease ended; attempt 5: no disk"
    assert outcome.error == ErrorInfo(type="DriverLost", message=f"the driver was lost 5 times: {fields}")
    assert outcome.losses == (*before, Loss(5, "no disk"))


def test_what_is_kept_of_losses_is_bounded_and_one_that_does_not_count_is_not_kept():
    long = ErrorInfo(type="DriverLost", message="x" * 4000)
    losses = ()
    for attempt in range(1, 100):
        losses = with_loss(losses, attempt, long)
    assert [loss.attempt for loss in losses] == list(range(90, 100))
    assert len(json.dumps(stored(losses))) < 5000
    assert len(failure(losses, 99).message) <= 4000
    assert losses_of(stored(losses)) == losses
    of = replace(row(), losses=losses)
    released = fold_all([ended("released", error=ERROR)], of).runs[7]
    assert (released.losses, released.loss) == (losses, ERROR)


def test_as_many_attempts_as_allowed():
    """A run is lost as often as allowed and released any number of times in between."""
    lost = attempts = 0
    while True:
        attempts += 1
        released = fold_all([ended("released", attempts)], row(attempt=attempts, lost=lost)).runs[7]
        assert released.ends == R.QUEUED
        attempts += 1
        outcome = fold_all([beat(attempts), ended("lost", attempts)], row(attempt=attempts, lost=lost)).runs[7]
        lost += outcome.counted
        if outcome.ends != R.QUEUED:
            break
    assert (outcome.ends, lost) == (R.FAILED, MOST_LOST)


# the tables of edges

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


def test_a_driver_that_is_lost_right_after_it_staged_leaves_its_output_to_another():
    made = fold_all([beat(), staged(), ended("lost", error=ERROR)], row(R.STARTING, started=False))
    outcome = made.runs[7]
    assert (outcome.starts, outcome.stages, outcome.orphaned, outcome.ends) == (True, ("/o",), True, None)
    assert outcome.counted


def test_nothing_is_heard_of_a_publisher_that_was_lost():
    made = fold_all([ended("lost"), beat(), ended("failed")], row(R.PUBLISHING))
    assert (made.runs[7].orphaned, made.runs[7].alive, made.runs[7].ends) == (True, False, None)
    assert [why for _, why in made.ignored] == ["its publisher was lost"] * 2


@pytest.mark.parametrize("publication", [0, 2])
def test_reports_of_another_publication_change_nothing(publication):
    of = RunRow(7, R.PUBLISHING, 2, 0, cancel_requested=False, started_before=True, publication=1)
    reports = [
        RunReported(backfill_id="b", run_id=7, attempt=2, state="failed", publication=publication),
        RunHeartbeat(backfill_id="b", run_id=7, attempt=2, publication=publication),
    ]
    made = fold(reports, {7: of}, {}, MOST_LOST)
    assert made.runs == {}
    assert [why for _, why in made.ignored] == ["publication 1 is the newest"] * 2


def test_a_publication_that_loses_every_driver_fails_in_the_end():
    made = fold_all([ended("lost", error=ERROR)], row(R.PUBLISHING, lost=MOST_LOST - 1))
    assert (made.runs[7].ends, made.runs[7].orphaned) == (R.FAILED, False)
    # A release by the host is not counted.
    made = fold_all([ended("released")], row(R.PUBLISHING, lost=MOST_LOST - 1))
    assert (made.runs[7].ends, made.runs[7].orphaned) == (None, True)
