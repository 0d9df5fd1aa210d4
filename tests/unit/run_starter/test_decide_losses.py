"""The ends of attempts: what becomes of the runs that they leave, and how losses are counted and told."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.run_starter.reported import (
    ERROR,
    MOST_LOST,
    OF,
    attempt,
    beat,
    began,
    ended,
    fold,
    fold_of,
    over,
    put_off,
    rows_after,
    run,
    staged,
    steps,
)

from retrofill.states import AttemptMode, AttemptOutcome
from retrofill_core.contract.runs import ErrorInfo
from retrofill_core.domain.run import LIVE
from retrofill_core.domain.run import RunState as R
from run_starter.reports.decide import MAX_PUT_OFF_SECONDS, PUT_OFF_SECONDS
from run_starter.reports.steps import (
    HOST_SILENT,
    SILENT,
    UNKNOWN,
    Accept,
    AttemptEnd,
    AwaitPublisher,
    Begin,
    End,
    Loss,
    Requeue,
    failure,
    losses_of,
    stored,
    with_loss,
)

CANCELLED = AttemptOutcome.CANCELLED

# ends of attempts

QUEUED, STAGED = Requeue, AwaitPublisher
# State of the run, whether it is to be cancelled → what becomes of it when its attempt is done or
# released, when the attempt is lost, and when that is the last loss that a suspect may have.
ENDS: dict[tuple[R, bool], tuple[R | type[Requeue | AwaitPublisher], ...]] = {
    (R.STARTING, False): (QUEUED, QUEUED, QUEUED),
    (R.STARTING, True): (R.CANCELLED, R.CANCELLED, R.CANCELLED),
    (R.RUNNING, False): (QUEUED, QUEUED, R.FAILED),
    (R.RUNNING, True): (R.CANCELLED, R.CANCELLED, R.CANCELLED),
    # Accepted, so it is neither executed again nor cancelled, and no loss fails it.
    (R.PUBLISHING, False): (STAGED, STAGED, STAGED),
    (R.PUBLISHING, True): (STAGED, STAGED, STAGED),
}


@pytest.mark.parametrize("suspect", [False, True])
@pytest.mark.parametrize("lost", [0, MOST_LOST - 1, MOST_LOST])
@pytest.mark.parametrize("how", ["done", "released", "lost"])
@pytest.mark.parametrize(("state", "cancel"), ENDS)
def test_what_becomes_of_a_run_that_its_attempt_left(state, cancel, how, lost, suspect):
    """What is lost because its host ended its driver, as a cancel wants it, is no loss. The first loss
    makes the run a suspect, and only those of a suspect count.
    """
    made = fold([over(how, error=ERROR)], [run(state, lost=lost, suspect=suspect)], [attempt(cancel=cancel)])
    expected = ENDS[state, cancel][0 if how != "lost" else 1 if lost == 0 or not suspect else 2]
    (step,) = steps(made)
    is_lost = how == "lost" and state != R.STARTING and not cancel
    assert step.counted == (is_lost and suspect)
    assert step.losses == ((Loss(2, "no disk", counted=suspect),) if is_lost else ())
    if isinstance(expected, R):
        assert isinstance(step, End)
        assert (step.state, step.error is not None) == (expected, expected == R.FAILED)
    else:
        assert isinstance(step, expected)
        assert step.suspect == is_lost
    if isinstance(step, Requeue):
        assert step.loss == (None if state == R.STARTING else ERROR)
    ends = CANCELLED if cancel and how != "done" else AttemptOutcome(how)
    assert made.attempts == {OF: AttemptEnd(ends, 1, ERROR)}
    assert made.ignored == []


@pytest.mark.parametrize("how", ["done", "released", "lost"])
@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("state", [R.SUCCEEDED, R.FAILED, R.CANCELLED])
def test_an_attempt_that_left_nothing_ends_as_it_did(state, cancel, how):
    """A cancel that came too late is none."""
    made = fold([over(how)], [run(state)], [attempt(cancel=cancel)])
    assert (made.runs, made.attempts) == ({}, {OF: AttemptEnd(AttemptOutcome(how), 1)})


@pytest.mark.parametrize("how", ["done", "released", "lost"])
def test_a_run_that_the_attempt_lost_to_another_one_is_left_alone(how):
    made = fold([over(how)], [run(R.RUNNING, of=OF + 1)], [attempt(), attempt(OF + 1)])
    assert (made.runs, list(made.attempts)) == ({}, [OF])


def test_a_loss_without_a_reason_says_so():
    (step,) = steps(fold([over("lost")]))
    assert step.loss == UNKNOWN
    assert step.losses == (Loss(2, UNKNOWN.message, counted=False),)


# what a driver was allowed to begin


@pytest.mark.parametrize("lost", [0, MOST_LOST - 1])
def test_a_run_that_the_driver_was_allowed_to_begin_counts_as_begun(lost):
    """Its code may have run, and its report that it began was lost with it."""
    row = run(R.STARTING, number=2, lost=lost, suspect=True)
    made = fold([over("lost", begun=7, error=ERROR)], [row], [attempt(began=False)])
    first, then = steps(made)
    assert first == Begin(first=False)
    assert then.counted
    assert then.losses == (Loss(3, "no disk"),)
    if lost == 0:
        assert then == Requeue(ERROR, then.losses, counted=True, suspect=True)
    else:
        assert (then.state, "attempt 3: no disk" in then.error.message) == (R.FAILED, True)
    assert list(made.began) == [OF]


@pytest.mark.parametrize("how", ["done", "released"])
def test_what_a_driver_that_is_not_at_fault_was_allowed_to_begin_is_no_loss(how):
    """No two executions of a run have the same number, so it counts as begun."""
    made = fold([over(how, begun=7)], [run(R.STARTING)], [attempt(began=False)])
    assert steps(made) == [Begin(first=False), Requeue(UNKNOWN, (), counted=False)]
    assert list(made.began) == [OF]


def test_of_a_batch_only_the_last_run_that_might_begin_counts_with_those_that_began():
    runs = [run(R.RUNNING, 1), run(R.STARTING, 2), run(R.STARTING, 3)]
    made = fold([ended("succeeded", 1), over("lost", begun=2, error=ERROR)], runs)
    assert made.runs == {
        1: [End(R.SUCCEEDED)],
        2: [Begin(first=False), Requeue(ERROR, (Loss(3, "no disk", counted=False),), counted=False, suspect=True)],
        3: [Requeue(None, (), counted=False)],
    }


@pytest.mark.parametrize("state", [R.RUNNING, R.PUBLISHING, R.SUCCEEDED])
def test_a_run_that_began_does_not_begin_again_because_it_was_allowed_to(state):
    made = fold([over("lost", begun=7)], [run(state, before=False)])
    assert not made.steps(Begin)


def test_a_run_of_another_attempt_does_not_begin():
    made = fold([over("lost", begun=7)], [run(R.STARTING, of=OF + 1)], [attempt(), attempt(OF + 1)])
    assert made.runs == {}


# batches


def test_a_lost_driver_loses_what_it_published_and_what_it_executed():
    runs = [run(R.PUBLISHING, 1), run(R.RUNNING, 2), run(R.STARTING, 3)]
    made = fold([over("lost", error=ERROR)], runs)
    losses = (Loss(2, "no disk", counted=False),)
    assert made.runs == {
        1: [AwaitPublisher(losses, counted=False, suspect=True, error=ERROR)],
        2: [Requeue(ERROR, losses, counted=False, suspect=True)],
        3: [Requeue(None, (), counted=False)],
    }


def test_a_cancelled_batch_keeps_what_was_accepted():
    runs = [run(R.PUBLISHING, 1), run(R.RUNNING, 2), run(R.STARTING, 3)]
    made = fold([over("lost", error=ERROR)], runs, [attempt(cancel=True)])
    assert made.runs[1] == [AwaitPublisher((), counted=False, error=ERROR)]
    assert [made.runs[id][0].state for id in (2, 3)] == [R.CANCELLED] * 2
    assert made.attempts == {OF: AttemptEnd(CANCELLED, 1, ERROR)}


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("lost", [0, MOST_LOST - 1, MOST_LOST, 10 * MOST_LOST])
def test_a_publication_that_loses_every_driver_never_fails_but_pauses(cancel, lost):
    """A lost publisher may have published, and may still. A cancel does not end what only publishes."""
    publisher = attempt(mode=AttemptMode.PUBLISH, cancel=cancel)
    row = run(R.PUBLISHING, lost=lost, suspect=True, publication=lost)
    made = fold([over("lost", error=ERROR)], [row], [publisher])
    pause = min(PUT_OFF_SECONDS * 2**lost, MAX_PUT_OFF_SECONDS)
    losses = (Loss(2, "no disk"),)
    assert steps(made) == [AwaitPublisher(losses, counted=True, suspect=True, error=ERROR, seconds=pause)]
    assert made.attempts == {OF: AttemptEnd(AttemptOutcome.LOST, 1, ERROR)}
    # A release by the host is not counted.
    made = fold([over("released", error=ERROR)], [row], [publisher])
    assert steps(made) == [AwaitPublisher((), counted=False, error=ERROR)]


@pytest.mark.parametrize("mode", [AttemptMode.EACH, AttemptMode.RANGE, AttemptMode.PUBLISH])
def test_output_that_cannot_be_published_now_waits_for_a_later_publisher(mode):
    made = fold([put_off(), beat(), over("done")], [run(R.PUBLISHING, publication=3)], [attempt(mode=mode)])
    assert steps(made) == [AwaitPublisher((), counted=False, error=ERROR, seconds=8 * PUT_OFF_SECONDS)]
    assert made.attempts == {OF: AttemptEnd(AttemptOutcome.DONE, 1)}


@pytest.mark.parametrize("state", [R.STARTING, R.RUNNING])
def test_what_was_not_accepted_cannot_be_put_off(state):
    made = fold([put_off()], [run(state)])
    assert not any(isinstance(step, AwaitPublisher) for step in steps(made))
    assert [why for _, why in made.ignored] == ["the run is running"]


def test_a_driver_that_is_lost_right_after_it_staged_leaves_its_output_to_another():
    made = fold([began(), staged(), over("lost", error=ERROR)], [run(R.STARTING, before=False)])
    assert steps(made) == [
        Begin(first=True),
        Accept(("/o",)),
        AwaitPublisher((Loss(3, "no disk", counted=False),), counted=False, suspect=True, error=ERROR),
    ]


# losses


@pytest.mark.parametrize("state", LIVE)
def test_a_driver_that_was_not_heard_of_is_lost(state):
    """What waited may have begun without a report."""
    made = fold_of([run(state)]).lose(OF, SILENT)
    assert made.attempts == {OF: AttemptEnd(AttemptOutcome.LOST, 1, SILENT)}
    *before, step = steps(made)
    assert before == ([Begin(first=False)] if state == R.STARTING else [])
    losses = (Loss(3 if state == R.STARTING else 2, SILENT.message, counted=False),)
    assert step == (
        AwaitPublisher(losses, counted=False, suspect=True, error=SILENT)
        if state == R.PUBLISHING
        else Requeue(SILENT, losses, counted=False, suspect=True)
    )


def test_of_a_silent_batch_the_next_run_in_order_counts_as_begun():
    """The order is that of the positions. Two of its runs may be under way at once: one is published."""
    runs = [
        run(R.PUBLISHING, 1, position=0),
        run(R.STARTING, 2, position=3, lost=1),
        run(R.STARTING, 4, number=0, position=2, before=False),
    ]
    made = fold_of(runs, [attempt(began=False)]).lose(OF, SILENT)
    assert made.runs == {
        1: [AwaitPublisher((Loss(2, SILENT.message, counted=False),), counted=False, suspect=True, error=SILENT)],
        2: [Requeue(None, (), counted=False)],
        4: [Begin(first=True), Requeue(SILENT, (Loss(1, SILENT.message, counted=False),), counted=False, suspect=True)],
    }
    assert (made.first_starts(), list(made.began)) == ([4], [OF])


def test_of_a_silent_attempt_that_is_to_be_cancelled_nothing_is_a_loss():
    runs = [run(R.PUBLISHING, 1), run(R.RUNNING, 2), run(R.STARTING, 3), run(R.STARTING, 4)]
    made = fold_of(runs, [attempt(cancel=True)]).lose(OF, SILENT)
    cancelled = End(R.CANCELLED, None, (), counted=False)
    assert made.runs == {
        1: [AwaitPublisher((), counted=False, error=SILENT)],
        2: [cancelled],
        3: [Begin(first=False), cancelled],
        4: [cancelled],
    }
    assert made.attempts == {OF: AttemptEnd(CANCELLED, 1, SILENT)}


def test_an_attempt_whose_runs_have_all_ended_is_lost_without_a_run():
    made = fold_of([run(R.SUCCEEDED), run(R.STARTING, 8, of=OF + 1)], [attempt(), attempt(OF + 1)]).lose(OF, SILENT)
    assert (made.runs, made.attempts) == ({}, {OF: AttemptEnd(AttemptOutcome.LOST, 1, SILENT)})


def test_attempts_are_lost_one_after_the_other():
    fold = fold_of([run(R.RUNNING, 1, of=5), run(R.RUNNING, 2, of=6)], [attempt(5), attempt(6)])
    fold.lose(5, SILENT)
    made = fold.lose(6, SILENT)
    assert {id: type(each) for id, (each,) in made.runs.items()} == {1: Requeue, 2: Requeue}
    assert list(made.attempts) == [5, 6]


def test_the_last_loss_tells_how_each_attempt_was_lost():
    reasons = ["ended by signal 9", "no disk", "no disk", "its lease ended"]
    before = tuple(Loss(number, reason) for number, reason in enumerate(reasons, 1))
    (step,) = steps(fold([over("lost", error=ERROR)], [run(number=5, lost=4, losses=before, suspect=True)]))
    fields = "attempt 1: ended by signal 9; attempts 2 to 3: no disk; attempt 4: its lease ended; attempt 5: no disk"
    told = f"the driver was lost 5 times when the run was retried alone; its losses: {fields}"
    assert step.error == ErrorInfo(type="DriverLost", message=told)
    assert step.losses == (*before, Loss(5, "no disk"))


def test_what_is_kept_of_losses_is_bounded_and_a_release_is_not_kept():
    long = ErrorInfo(type="DriverLost", message="x" * 4000)
    losses: tuple[Loss, ...] = ()
    for number in range(1, 100):
        losses = with_loss(losses, number, long, counted=number > 95)
    assert [loss.attempt for loss in losses] == list(range(90, 100))
    assert len(json.dumps(stored(losses))) < 5000
    assert len(failure(losses, 99).message) <= 4000
    assert losses_of(stored(losses)) == losses
    (step,) = steps(fold([over("released", error=ERROR)], [run(losses=losses)]))
    assert step == Requeue(ERROR, losses, counted=False)


def test_losses_that_an_older_release_stored_counted():
    assert losses_of({"last": [{"attempt": 1, "reason": "no disk"}]}) == (Loss(1, "no disk", counted=True),)


def test_as_many_attempts_as_allowed():
    """A run is lost once, then alone as often as allowed, and any number of times released, or not
    begun at all.
    """
    row, counts = run(R.STARTING, number=0, before=False), []
    for n in range(100):
        if row.state == R.FAILED:
            break
        how = [over("released"), over("lost"), over("lost", begun=7)][n % 3]
        made = fold([how] if n % 3 else [began(), how], [replace(row, state=R.STARTING)], [attempt(began=False)])
        row = rows_after({7: row}, made)[7]
        counts.append((row.attempt, row.lost_attempts))
    assert row.state == R.FAILED
    # Two begin of three, and one of them counts but for the first.
    assert counts[:9] == [(1, 0), (1, 0), (2, 0), (3, 0), (3, 0), (4, 1), (5, 1), (5, 1), (6, 2)]
    assert row.lost_attempts == MOST_LOST


@pytest.mark.parametrize("mode", [AttemptMode.EACH, AttemptMode.RANGE])
@pytest.mark.parametrize(("state", "step"), [(R.RUNNING, QUEUED), (R.PUBLISHING, STAGED)])
@pytest.mark.parametrize("what", ["host", "server"])
def test_the_first_loss_with_a_whole_host_or_server_makes_no_suspect_and_splits_no_range(
    mode: AttemptMode, state: R, step: type[Requeue | AwaitPublisher], what: str
) -> None:
    """The second does, as does any loss of a driver alone. A suspect is not excused: it was retried alone."""
    lost = attempt(mode=mode)

    def after(*losses: Loss, suspect: bool = False, shared: bool = True) -> Any:
        row = replace(run(state, suspect=suspect), losses=stored(losses))
        if what == "server":
            return steps(fold([over("lost", error=ERROR, shared=shared)], [row], [lost]))[-1]
        return steps(fold_of([row], [lost]).lose(OF, HOST_SILENT if shared else SILENT, shared=shared))[-1]

    first = after()
    assert isinstance(first, step)
    assert (first.suspect, first.counted, first.losses[-1].shared) == (False, False, True)
    assert not after(Loss(1, "alone", counted=False)).suspect
    assert after(*first.losses).suspect
    assert after(shared=False).suspect
    assert after(suspect=True).suspect
    assert losses_of(stored(first.losses)) == first.losses
