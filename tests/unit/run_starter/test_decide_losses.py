"""Reports of lost drivers: what a loss leads to, how losses are counted and told, and who publishes
after one.
"""

import json
from dataclasses import replace

import pytest
from tests.unit.run_starter.reported import ERROR, MOST_LOST, beat, ended, fold_all, row, staged

from retrofill.contract.runs import ErrorInfo, RunHeartbeat, RunReported
from retrofill.domain.run import RunState as R
from run_starter.decide import RunOutcome, RunRow, fold, lose
from run_starter.losses import Loss, failure, losses_of, stored, with_loss


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
