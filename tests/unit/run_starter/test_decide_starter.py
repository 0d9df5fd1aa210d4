"""Reports change runs and tasks: one in each state, and several in one batch."""

import pytest
from tests.unit.run_starter.reported import ERROR, MOST_LOST, REPORTS, beat, ended, fold_all, row, task

from retrofill.contract.runs import RunReported
from retrofill.domain.run import LIVE
from retrofill.domain.run import RunState as R
from retrofill.domain.task_run import MACHINE as TASK
from retrofill.domain.task_run import TaskState as T
from run_starter.decide import RunOutcome, RunRow, fold


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
