"""The planner's commands and checks, each over its full grid of states."""

import itertools
from dataclasses import replace

import pytest

from backfill_planner.decide import (
    Approved,
    BeginReview,
    CancelForFailure,
    End,
    Enter,
    PauseForBudget,
    PauseForFailure,
    Refuse,
    Review,
    Snapshot,
    Unchanged,
    answer_command,
    judge,
)
from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillDiscardRequested,
    BackfillPauseRequested,
    BackfillPublishRequested,
    BackfillResumeRequested,
)
from retrofill_core.domain.backfill import ACTIVE, MACHINE, OnRunFailure
from retrofill_core.domain.backfill import BackfillState as S
from retrofill_core.domain.budget import Budget

PAUSE, RESUME, CANCEL = BackfillPauseRequested(), BackfillResumeRequested(), BackfillCancelRequested()
PUBLISH, DISCARD = BackfillPublishRequested(), BackfillDiscardRequested()

# (command, state) → the resulting decision
GRID = {
    (PAUSE, S.RUNNING): Enter(S.PAUSED),
    (PAUSE, S.PAUSED): Unchanged(S.PAUSED),
    (PAUSE, S.CANCELLING): Refuse,
    (PAUSE, S.CANCELLED): Refuse,
    (PAUSE, S.SUCCEEDED): Refuse,
    (PAUSE, S.FAILED): Refuse,
    (RESUME, S.RUNNING): Unchanged(S.RUNNING),
    (RESUME, S.PAUSED): Enter(S.RUNNING),
    (RESUME, S.CANCELLING): Refuse,
    (RESUME, S.CANCELLED): Refuse,
    (RESUME, S.SUCCEEDED): Refuse,
    (RESUME, S.FAILED): Refuse,
    (CANCEL, S.RUNNING): Enter(S.CANCELLING),
    (CANCEL, S.PAUSED): Enter(S.CANCELLING),
    (CANCEL, S.CANCELLING): Unchanged(S.CANCELLING),
    (CANCEL, S.CANCELLED): Unchanged(S.CANCELLED),
    (CANCEL, S.SUCCEEDED): Refuse,
    (CANCEL, S.FAILED): Refuse,
    (PAUSE, S.IN_REVIEW): Refuse,
    (RESUME, S.IN_REVIEW): Refuse,
    (CANCEL, S.IN_REVIEW): Enter(S.CANCELLING),
}
REFUSED, AGAIN = Refuse, Approved()
# (command, review) → by state in the order of ``STATES``.
STATES = (S.RUNNING, S.PAUSED, S.IN_REVIEW, S.CANCELLING, S.CANCELLED, S.SUCCEEDED, S.FAILED)
REVIEWS = {
    (PUBLISH, Review.NONE): (REFUSED, REFUSED, None, REFUSED, REFUSED, REFUSED, REFUSED),
    (PUBLISH, Review.WAITS): (REFUSED, REFUSED, Enter(S.RUNNING), REFUSED, REFUSED, REFUSED, REFUSED),
    (PUBLISH, Review.APPROVED): (AGAIN, AGAIN, None, AGAIN, AGAIN, AGAIN, AGAIN),
    (DISCARD, Review.NONE): (REFUSED, REFUSED, None, REFUSED, REFUSED, REFUSED, REFUSED),
    (DISCARD, Review.WAITS): (
        *(REFUSED, REFUSED, Enter(S.CANCELLING), Unchanged(S.CANCELLING), Unchanged(S.CANCELLED), REFUSED, REFUSED),
    ),
    (DISCARD, Review.APPROVED): (
        *(REFUSED, REFUSED, None, Unchanged(S.CANCELLING), Unchanged(S.CANCELLED), REFUSED, REFUSED),
    ),
}
WISHES = {PAUSE: "pause", RESUME: "resume", CANCEL: "cancel"}


def test_the_grid_of_commands_is_whole():
    assert set(GRID) == set(itertools.product((PAUSE, RESUME, CANCEL), S))


@pytest.mark.parametrize(("command", "state"), GRID)
def test_what_a_command_does_in_each_state(command, state):
    expected, answer = GRID[command, state], answer_command(command, str(state))
    if expected is Refuse:
        said = str(state).replace("_", " ")
        assert answer == Refuse(f"the backfill is {said}: there is nothing to {WISHES[command]}")
    else:
        assert answer == expected
    if isinstance(answer, Enter):
        assert MACHINE.allows(state, answer.state)


@pytest.mark.parametrize(("command", "review"), REVIEWS)
def test_what_is_asked_of_a_review(command, review):
    for state, expected in zip(STATES, REVIEWS[command, review], strict=True):
        if expected is None:
            continue  # a backfill is in review only while it waits for one
        answer = answer_command(command, str(state), review=review)
        assert isinstance(answer, Refuse) if expected is Refuse else answer == expected, (state, answer)
        if isinstance(answer, Enter):
            assert MACHINE.allows(state, answer.state)


def test_only_what_neither_ended_nor_waits_puts_a_review_off():
    for snapshot in SNAPSHOTS:
        waiting = replace(snapshot, any_held=True, any_open=False)
        begins = judge(waiting) == BeginReview(complete=not (waiting.any_failed or waiting.any_run_cancelled))
        cancels = waiting.failed_since_resume and waiting.on_run_failure == "cancel"
        assert begins == (waiting.any_unfinished and waiting.state in (S.RUNNING, S.PAUSED) and not cancels)
        for other in ({"any_open": True}, {"any_publishing": True}, {"any_held": False}):
            assert not isinstance(judge(replace(waiting, **other)), BeginReview)


@pytest.mark.parametrize(
    ("named", "approvals", "enters"),
    [(None, 0, True), (None, 3, True), (0, 0, True), (2, 2, True), (0, 1, False), (3, 2, False)],
)
def test_the_review_that_a_command_names_is_the_one_that_it_approves(named, approvals, enters):
    command = BackfillPublishRequested(review=named)
    answer = answer_command(command, "in_review", review=Review.APPROVED, approvals=approvals)
    assert (answer == Enter(S.RUNNING)) == enters
    assert enters or "another review has begun since" in answer.message


@pytest.mark.parametrize("command", WISHES)
def test_a_command_for_a_backfill_that_does_not_exist_is_refused_with_a_way_on(command):
    answer = answer_command(command, None)
    assert isinstance(answer, Refuse)
    assert "backfill list" in answer.message


SNAPSHOTS = [
    Snapshot(*each)
    for each in itertools.product(
        S,
        (None, "user", "run_failure"),
        OnRunFailure,
        *[(False, True)] * 4,
        (None, "3 runs failed"),
    )
]


@pytest.mark.parametrize("snapshot", SNAPSHOTS, ids=str)
def test_what_follows_from_how_far_a_backfill_is(snapshot):
    decision = judge(snapshot)
    if snapshot.state in (S.SUCCEEDED, S.FAILED, S.CANCELLED, S.IN_REVIEW):
        assert decision is None
    elif not snapshot.any_unfinished:
        if snapshot.state == S.CANCELLING:
            expected = S.CANCELLED if snapshot.cancel_cause == "user" else S.FAILED
        else:
            expected = S.FAILED if snapshot.any_failed or snapshot.any_run_cancelled else S.SUCCEEDED
        assert decision == End(expected)
        assert MACHINE.allows(snapshot.state, expected)
    elif snapshot.failed_since_resume and snapshot.on_run_failure == "pause" and snapshot.state == S.RUNNING:
        assert decision == PauseForFailure()
    elif snapshot.failed_since_resume and snapshot.on_run_failure == "cancel" and snapshot.state != S.CANCELLING:
        assert decision == CancelForFailure()
    elif snapshot.used_up and snapshot.state == S.RUNNING:
        assert decision == PauseForBudget("3 runs failed")
    else:
        assert decision is None


def test_a_backfill_with_an_unfinished_run_never_ends_and_one_without_always_does():
    for snapshot in SNAPSHOTS:
        ends = isinstance(judge(snapshot), End)
        # Something is staged as long as it is in review.
        active = snapshot.state in ACTIVE and snapshot.state != S.IN_REVIEW
        assert ends == (active and not snapshot.any_unfinished)


def test_a_failure_before_the_resume_is_not_held_against_it():
    resumed = Snapshot(
        S.RUNNING, None, OnRunFailure.PAUSE, True, True, any_run_cancelled=False, failed_since_resume=False
    )
    assert judge(resumed) is None


def test_a_resume_is_refused_while_the_budget_is_used_up():
    plain, larger = BackfillResumeRequested(), BackfillResumeRequested(budget=Budget(failed_runs=6))
    for command in (plain, larger):
        refused = answer_command(command, "paused", "3 runs failed")
        assert isinstance(refused, Refuse)
        assert "3 runs failed" in refused.message
        assert "--budget" in refused.message
        assert answer_command(command, "paused") == Enter(S.RUNNING)
    # A repeat does no harm; a budget that would not take effect is not dropped silently.
    assert answer_command(plain, "running", "3 runs failed") == Unchanged(S.RUNNING)
    assert isinstance(answer_command(larger, "running"), Refuse)
    assert answer_command(BackfillCancelRequested(), "paused", None) == Enter(S.CANCELLING)
