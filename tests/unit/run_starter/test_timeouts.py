"""Runs that timed out: they fail once their attempt has ended; nothing is held against the others."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.run_starter.reported import ERROR, attempt, ended, fold, fold_of, over, run, staged

from retrofill.states import AttemptMode, AttemptOutcome
from retrofill_core.contract.runs import AttemptEnded, ErrorInfo, RunReported, TaskReported
from retrofill_core.domain.pipeline import TaskDefinition
from retrofill_core.domain.run import RunState as R
from run_starter.executors import TimedOut
from run_starter.host.hosting import DriverHost
from run_starter.reports.steps import HOST_SILENT, SILENT, Accept, AwaitPublisher, Begin, End, Requeue, Split

LATE = ErrorInfo(type="RunTimedOut", message="run 7 timed out after 10m: …")
FAILED = End(R.FAILED, LATE)
UNTOUCHED = Requeue(None, (), counted=False)


def ending(mode=AttemptMode.EACH, **more):
    return attempt(mode=mode, runs=4, release=True, **more)


@pytest.mark.parametrize("how", ["lost", "released"])
def test_it_fails_and_the_others_are_queued_again_uncounted(how):
    runs = [run(timed_out=LATE, suspect=True, lost=4), run(R.STARTING, id=8), run(R.STARTING, id=9)]
    made = fold([over(how, begun=7, error=ERROR)], runs, [ending()])
    assert made.runs == {7: [FAILED], 8: [UNTOUCHED], 9: [UNTOUCHED]}
    assert (made.attempts[5].outcome, made.attempts[5].error) == (AttemptOutcome.RELEASED, LATE)


def test_it_fails_though_its_host_is_silent_too():
    made = fold_of([run(timed_out=LATE), run(R.STARTING, id=8)], [ending()]).lose(5, SILENT)
    assert made.runs[7] == [FAILED]
    assert [type(step) for step in made.runs[8]] == [Begin, Requeue] and not made.runs[8][-1].counted


def test_it_fails_once_if_its_driver_came_to_its_end():
    made = fold([over()], [run(timed_out=LATE), run(R.STARTING, id=8)], [ending()])
    assert made.runs == {7: [FAILED], 8: [UNTOUCHED]}


def test_output_that_is_accepted_before_the_end_is_published():
    made = fold([staged(), over("lost", error=ERROR)], [run(timed_out=LATE)], [ending()])
    assert [type(step) for step in made.runs[7]] == [Accept, AwaitPublisher]


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_an_end_that_is_reported_before_counts(state):
    made = fold([ended(state, error=ERROR), over("lost", error=ERROR)], [run(timed_out=LATE)], [ending()])
    assert [step.state for step in made.runs[7]] == [R(state)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("how", ["lost", "silent", "released", "done"])
def test_a_range_is_split_and_no_loss(how, shared):
    runs = [run(id=7, timed_out=LATE), *(run(id=id) for id in (8, 9, 10))]
    if how == "done":
        runs = [run(id=id, timed_out=LATE) for id in (7, 8, 9, 10)]
    if how == "silent":
        made = fold_of(runs, [ending(AttemptMode.RANGE)]).lose(5, HOST_SILENT if shared else SILENT, shared=shared)
    else:
        made = fold([over(how, begun=7, error=ERROR, shared=shared)], runs, [ending(AttemptMode.RANGE)])
    assert made.runs == {id: [Split(1, made.runs[7][0].error, (), suspect=False)] for id in (7, 8, 9, 10)}
    if how != "done":
        assert (made.attempts[5].outcome, made.attempts[5].error) == (AttemptOutcome.FAILED, LATE)
        assert made.runs[7][0].error == LATE


@pytest.mark.parametrize("by", [{"cancel": True}, {}])
def test_a_cancel_goes_first(by):
    made = fold([over("lost", error=ERROR)], [run(timed_out=LATE)], [ending(**by)], cancelled=() if by else {7})
    assert [step.state for step in made.runs[7]] == [R.CANCELLED]


# what a host reports of a driver that a task ended


class Reports(DriverHost):
    """A host that only records its reports."""

    def __init__(self) -> None:
        super().__init__(None, None, "t.", 1)  # type: ignore[arg-type]
        self.said: list[Any] = []

    def report(self, report: Any) -> None:
        self.said.append(report)


def reported(mode, try_number, *, everywhere=False):
    """What follows try ``try_number`` of a task with one retry, in run 7 of 7 and 8."""
    host = Reports()
    tasks = (TaskDefinition(name="a"), TaskDefinition(name="t", retries=1, timeout_seconds=9))
    about = {"backfill_id": "b", "attempt_id": 5}
    launch: Any = SimpleNamespace(
        **about,
        about=about,
        mode=mode,
        pipeline=SimpleNamespace(tasks=tasks),
        runs=[SimpleNamespace(id=7, attempt=3), SimpleNamespace(id=8, attempt=1)],
    )
    host.timed_out(launch, 7, TimedOut("t", try_number, LATE, everywhere))
    assert host.drivers_changed.is_set()
    return host.said


def test_a_run_with_tries_left_is_queued_again_and_the_try_is_recorded():
    task, end = reported(AttemptMode.EACH, 1)
    assert isinstance(task, TaskReported) and (task.run_id, task.attempt, task.task) == (7, 3, "t")
    assert (task.state, task.try_number, task.error) == ("retrying", 1, LATE)
    assert isinstance(end, AttemptEnded) and (end.state, end.begun, end.error) == ("released", 7, LATE)
    made = fold([task, end], [run(), run(R.STARTING, id=8)], tasks={"t": "running"})
    assert made.runs == {7: [Requeue(LATE, (), counted=False)], 8: [UNTOUCHED]}


def test_a_run_without_fails_and_the_others_are_queued_again():
    task, last, end = reported(AttemptMode.EACH, 2)
    assert (task.state, task.try_number) == ("failed", 2)
    assert isinstance(last, RunReported) and (last.run_id, last.state, last.error) == (7, "failed", LATE)
    made = fold([task, last, end], [run(), run(R.STARTING, id=8)], tasks={"t": "running"})
    assert made.runs == {7: [End(R.FAILED, LATE)], 8: [UNTOUCHED]}
    assert made.attempts[5].error == LATE


@pytest.mark.parametrize(("mode", "failed"), [(AttemptMode.EACH, {7}), (AttemptMode.RANGE, {7, 8})])
def test_what_would_end_each_run_of_a_range_is_not_tried_in_smaller_ones(mode, failed):
    end = reported(mode, 2, everywhere=True)[-1]
    assert isinstance(end, AttemptEnded)
    rows = [run(), run(R.STARTING, id=8)]
    made = fold(reported(mode, 2, everywhere=True), rows, tasks={"t": "running"})
    assert {id for id, steps in made.runs.items() if steps[-1] == End(R.FAILED, LATE)} == failed


def test_a_range_of_it_is_split():
    *tasks, end = reported(AttemptMode.RANGE, 1)
    assert [(each.run_id, each.state) for each in tasks] == [(7, "failed"), (8, "failed")]
    runs = [run(id=7), run(id=8)]
    made = fold([*tasks, end], runs, [attempt(mode=AttemptMode.RANGE, runs=2)], tasks={"t": "running"})
    assert made.runs == {id: [Split(1, LATE, (), suspect=False)] for id in (7, 8)}
