"""Reports change attempts, runs and tasks: one in each state, and several in one batch."""

import pytest
from tests.unit.run_starter.reported import (
    ALL,
    ERROR,
    OF,
    REPORTS,
    attempt,
    beat,
    began,
    ended,
    fold,
    over,
    run,
    staged,
    steps,
    task,
)

from retrofill.states import TASK_RUN_MACHINE as TASK
from retrofill.states import AttemptMode, AttemptOutcome
from retrofill.states import TaskState as T
from retrofill_core.contract.base import Cost
from retrofill_core.contract.runs import AttemptEnded, SparkApplication
from retrofill_core.domain.run import LIVE
from retrofill_core.domain.run import RunState as R
from run_starter.reports.steps import Accept, AttemptEnd, Begin, End, Loss, Requeue, Step

# one report

LEADS_TO: dict[str, list[Step]] = {
    "began": [],
    "task": [],
    "staged": [Accept(("/o",))],
    "succeeded": [End(R.SUCCEEDED)],
    "failed": [End(R.FAILED, ERROR)],
}


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("state", R)
def test_one_report_of_a_run_in_each_state(state, report, cancel):
    """A request to cancel changes nothing about what a run achieved."""
    made = fold([REPORTS[report]()], [run(state, before=False)], [attempt(cancel=cancel)])
    assert made.attempts == {}
    if state not in LIVE:
        assert (made.runs, made.tasks, made.alive) == ({}, [], {})
        assert [why for _, why in made.ignored] == [f"the run is {state}"]
        return
    assert made.ignored == []
    begins = [Begin(first=True)] if state == R.STARTING else []
    accepted_before = report == "staged" and state == R.PUBLISHING
    assert steps(made) == begins + ([] if accepted_before else LEADS_TO[report])
    assert list(made.alive) == ([OF] if report == "staged" and not accepted_before else [])
    assert [(step.task, step.from_state, step.to) for step in made.tasks] == (
        [("t", "none", "queued")] if report == "task" else []
    )


@pytest.mark.parametrize("state", R)
def test_a_heartbeat_extends_the_lease_and_begins_nothing(state):
    """A driver sends it while its session opens, before any of its runs."""
    made = fold([beat(), beat()], [run(state)], [attempt(began=False)])
    assert (list(made.alive), made.runs, made.began, made.ignored) == ([OF], {}, {}, [])


# starts


@pytest.mark.parametrize("before", [False, True])
def test_the_first_start_is_told_from_later_ones(before):
    made = fold([began()], [run(R.STARTING, before=before)])
    assert steps(made) == [Begin(first=not before)]


@pytest.mark.parametrize("report", REPORTS)
def test_the_first_report_of_any_run_begins_its_attempt(report):
    assert list(fold([REPORTS[report]()], [run(R.STARTING)], [attempt(began=False)]).began) == [OF]
    assert list(fold([REPORTS[report]()], [run(R.STARTING)], [attempt(began=True)]).began) == []


def test_the_report_that_begins_an_attempt_names_its_spark_application():
    spark, other = (SparkApplication(id=id) for id in ("app-1", "app-2"))
    runs = [run(R.STARTING), run(R.STARTING, id=8)]
    first, second = began(), began(8)
    reports = [first.model_copy(update={"spark": spark}), second.model_copy(update={"spark": other})]
    assert fold(reports, runs, [attempt(began=False, runs=2)]).began == {OF: spark}
    assert fold([first, reports[1]], runs, [attempt(began=False, runs=2)]).began == {OF: None}
    assert fold(reports, runs, [attempt(began=True, runs=2)]).began == {}


def test_a_run_begins_once_in_a_batch_and_not_again_when_it_runs():
    reports = [began(), task("running"), began(), task("succeeded")]
    assert steps(fold(reports, [run(R.STARTING)])) == [Begin(first=False)]
    assert steps(fold(reports, [run(R.RUNNING)])) == []


@pytest.mark.parametrize("name", ["t", "elsewhere"])
def test_a_report_of_any_task_begins_the_run_but_extends_no_lease(name):
    """A short run sends no heartbeat."""
    made = fold([task("running", name), task("succeeded", name)], [run(R.STARTING, before=False)])
    assert (steps(made), made.alive) == ([Begin(first=True)], {})


def test_a_publisher_begins_its_attempt_and_not_the_run():
    made = fold([began()], [run(R.PUBLISHING)], [attempt(began=False, mode=AttemptMode.PUBLISH)])
    assert (list(made.began), made.runs) == ([OF], {})


# tasks


def test_tasks_of_a_run_that_begins_have_its_new_number():
    made = fold([task("running", "b")], [run(R.STARTING, number=2)], names=("a", "b"))
    assert {(step.run_id, step.attempt, step.task) for step in made.tasks} == {(7, 3, "b")}
    made = fold([task("running", "b")], [run(R.RUNNING, number=2)], tasks={"a": "none", "b": "none"})
    assert {(step.run_id, step.attempt, step.task) for step in made.tasks} == {(7, 2, "b")}


@pytest.mark.parametrize("from_state", T)
@pytest.mark.parametrize("to", T)
def test_one_step_of_a_task(from_state, to):
    made = fold([task(to, try_number=3, error=ERROR)], tasks={"t": from_state})
    seen = [(step.from_state, step.to, step.announce, step.error) for step in made.tasks]
    if (from_state, to) == (T.NONE, T.RUNNING):
        assert seen == [(T.NONE, T.QUEUED, False, None), (T.QUEUED, T.RUNNING, True, ERROR)]
    elif TASK.allows(from_state, to):
        assert seen == [(from_state, to, True, ERROR)]
        assert made.tasks[0].try_number == 3
    else:
        assert seen == []
        assert made.ignored[0][1] == f"the task is {from_state}"


@pytest.mark.parametrize("state", ["running", "retrying", "succeeded", "failed"])
@pytest.mark.parametrize("skip", ["skipped", "upstream_failed"])
def test_a_skip_never_overwrites_what_has_begun(state, skip):
    assert fold([task(skip)], tasks={"t": state}).tasks == []


def test_a_skip_does_not_overwrite_a_start_of_the_same_batch():
    made = fold([task("running"), task("skipped"), task("succeeded")])
    assert [step.to for step in made.tasks] == ["queued", "running", "succeeded"]
    assert len(made.ignored) == 1


def test_retries_go_round():
    made = fold([task("running"), task("retrying"), task("running", try_number=2), task("failed", try_number=2)])
    assert [step.to for step in made.tasks] == ["queued", "running", "retrying", "running", "failed"]
    assert [step.try_number for step in made.tasks] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("state", [R.STARTING, R.RUNNING])
def test_a_task_that_the_run_does_not_have_is_left_out(state):
    made = fold([task("running", "elsewhere")], [run(state)])
    assert made.tasks == []
    assert "elsewhere" in made.ignored[0][1]


# batches


def test_a_whole_attempt_in_one_batch():
    runs = [run(R.STARTING, 1, number=0, before=False), run(R.STARTING, 2, number=1)]
    made = fold(
        [
            began(1),
            task("running", run_id=1),
            task("succeeded", run_id=1),
            staged(1),
            began(2),
            ended("succeeded", 1),
            task("running", run_id=2),
            task("succeeded", run_id=2),
            ended("succeeded", 2),
            over(),
        ],
        runs,
        [attempt(began=False)],
    )
    assert made.runs == {
        1: [Begin(first=True), Accept(("/o",)), End(R.SUCCEEDED)],
        2: [Begin(first=False), End(R.SUCCEEDED)],
    }
    assert (list(made.began), made.attempts, made.ignored) == ([OF], {OF: AttemptEnd(AttemptOutcome.DONE, 1)}, [])
    assert [(step.run_id, step.attempt, step.to, step.announce) for step in made.tasks] == [
        (1, 1, "queued", False),
        (1, 1, "running", True),
        (1, 1, "succeeded", True),
        (2, 2, "queued", False),
        (2, 2, "running", True),
        (2, 2, "succeeded", True),
    ]


def test_a_failed_run_leaves_the_rest_of_its_batch_as_it_was():
    losses = (Loss(1, "no disk"),)
    waiting = [run(R.STARTING, id, number=1, lost=1, losses=losses) for id in (3, 4)]
    runs = [run(R.RUNNING, 1), run(R.STARTING, 2), *waiting]
    made = fold([ended("succeeded", 1), began(2), ended("failed", 2, error=ERROR), over()], runs, [attempt(runs=4)])
    assert made.runs[1] == [End(R.SUCCEEDED)]
    assert made.runs[2] == [Begin(first=False), End(R.FAILED, ERROR)]
    assert made.runs[3] == made.runs[4] == [Requeue(None, losses, counted=False)]
    # Its duration is that of the two that it executed.
    assert made.attempts == {OF: AttemptEnd(AttemptOutcome.DONE, 2)}


def test_attempts_of_one_batch_do_not_mix():
    attempts = [attempt(5, began=False), attempt(6, began=False)]
    runs = [run(R.STARTING, 1, of=5), run(R.STARTING, 2, of=6)]
    made = fold([beat(6), ended("failed", 1, of=5), over("lost", of=5)], runs, attempts)
    assert made.runs == {1: [Begin(first=False), End(R.FAILED)]}
    assert (list(made.began), list(made.alive), list(made.attempts)) == ([5], [6], [5])


# reports that change nothing


@pytest.mark.parametrize("report", ALL)
@pytest.mark.parametrize(
    "attempts", [[], [attempt(live=False)], [attempt(live=False), attempt(OF + 1)]], ids=["unknown", "over", "replaced"]
)
def test_a_report_of_an_attempt_that_is_over_changes_nothing(attempts, report):
    runs = [run(R.RUNNING, of=OF + 1)]
    made = fold([ALL[report]()], runs, attempts or [attempt(OF + 1)])
    assert (made.runs, made.tasks, made.alive, made.began, made.attempts) == ({}, [], {}, {}, {})
    assert [why for _, why in made.ignored] == ["the attempt is over"]


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("of", [None, OF + 1])
def test_a_report_of_a_run_that_the_attempt_does_not_have_changes_nothing(of, report):
    made = fold([REPORTS[report]()], [run(R.STARTING, of=of)], [attempt(began=False), attempt(OF + 1)])
    assert (made.runs, made.tasks, made.began) == ({}, [], {})
    assert [why for _, why in made.ignored] == ["the run has another attempt"]


@pytest.mark.parametrize("how", ["done", "released", "lost"])
@pytest.mark.parametrize("later", ALL)
@pytest.mark.parametrize("state", LIVE)
def test_what_comes_after_the_end_in_one_batch_changes_nothing(state, later, how):
    one = fold([over(how)], [run(state)])
    both = fold([over(how), ALL[later]()], [run(state)])
    assert (both.runs, both.attempts, both.tasks, both.alive) == (one.runs, one.attempts, [], {})
    assert [why for _, why in both.ignored] == ["the attempt is over"]


@pytest.mark.parametrize("end", ["succeeded", "failed"])
@pytest.mark.parametrize("later", REPORTS)
def test_what_comes_after_the_end_of_a_run_in_one_batch_changes_nothing(later, end):
    one, both = fold([ended(end)]), fold([ended(end), REPORTS[later]()])
    assert (both.runs, both.tasks, both.alive) == (one.runs, [], {})
    assert [why for _, why in both.ignored] == [f"the run is {end}"]


def test_what_an_attempt_cost_is_kept_with_its_end():
    cost = Cost(core_seconds=12.5, shuffle_bytes=2**40)
    end = AttemptEnded(backfill_id="b", attempt_id=OF, state="done", cost=cost)
    made = fold([ended("failed", error=ERROR).model_copy(update={"cost": cost}), end])
    assert made.attempts[OF].cost == cost
    assert steps(made) == [End(R.FAILED, ERROR, cost=cost)]
