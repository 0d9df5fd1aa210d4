"""The cancel of one run: it ends its attempt, and only itself."""

import pytest
from tests.unit.run_starter.reported import ERROR, attempt, ended, fold, fold_of, over, run, staged

from retrofill.states import AttemptMode, AttemptOutcome
from retrofill_core.domain.run import RunState as R
from run_starter.reports.steps import RELEASED, SILENT, AwaitPublisher, Begin, End, Requeue

CANCELLED = End(R.CANCELLED, None, ())
AGAIN, UNTOUCHED = Requeue(RELEASED, (), counted=False), Requeue(None, (), counted=False)


def release(mode=AttemptMode.EACH, **more):
    return attempt(mode=mode, runs=3, release=True, **more)


@pytest.mark.parametrize("how", ["lost", "released", "failed"])
@pytest.mark.parametrize("mode", [AttemptMode.EACH, AttemptMode.RANGE])
def test_the_others_are_queued_again_unsplit_and_nothing_counts(mode, how):
    runs = [run(id=7), run(id=8), run(R.STARTING, id=9)]
    made = fold([over(how, error=ERROR)], runs, [release(mode)], cancelled={8})
    assert made.runs == {7: [AGAIN], 8: [CANCELLED], 9: [UNTOUCHED]}
    assert made.attempts[5].outcome == AttemptOutcome.RELEASED and made.attempts[5].error == RELEASED


@pytest.mark.parametrize("state", [R.STARTING, R.RUNNING])
def test_so_it_is_if_the_driver_came_to_its_end(state):
    made = fold([over()], [run(state, id=7), run(R.STARTING, id=8)], [release()], cancelled={7})
    assert made.runs == {7: [CANCELLED], 8: [UNTOUCHED]}
    assert made.attempts[5].outcome == AttemptOutcome.DONE


def test_a_driver_that_died_at_that_moment_counts_no_loss():
    made = fold_of([run(lost=4), run(id=8)], [release()], most=5, cancelled={8}).lose(5, SILENT)
    assert made.runs == {7: [AGAIN], 8: [CANCELLED]}


def test_a_run_that_its_host_saw_begin_is_cancelled_as_one_that_began():
    made = fold([over("lost", begun=7, error=ERROR)], [run(R.STARTING)], [release(began=False)], cancelled={7})
    assert made.runs[7] == [Begin(False), CANCELLED]


def test_an_accepted_run_is_not_cancelled():
    made = fold([staged(), over("lost", error=ERROR)], [run()], [release()], cancelled={7})
    assert made.runs[7][-1] == AwaitPublisher((), counted=False, error=RELEASED)


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_a_run_that_ended_before_is_not_cancelled(state):
    made = fold([ended(state, error=ERROR), over("lost", error=ERROR)], [run()], [release()], cancelled={7})
    assert [step.state for step in made.runs[7]] == [R(state)]


def test_a_cancel_of_the_whole_backfill_takes_the_others_along():
    made = fold([over("lost", error=ERROR)], [run(id=7), run(id=8)], [release(cancel=True)], cancelled={8})
    assert made.runs == {7: [CANCELLED], 8: [CANCELLED]}
    assert made.attempts[5].outcome == AttemptOutcome.CANCELLED
