"""The planner's commands and checks, each over its full grid of states."""

import itertools
from dataclasses import replace

import pytest
from tests.support.rows import a_backfill

from backfill_planner.decide import (
    Approved,
    BeginReview,
    CancelForFailure,
    End,
    Enter,
    Pause,
    Refuse,
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
from retrofill_core.domain.backfill import ACTIVE, MACHINE, Budget, OnRunFailure
from retrofill_core.domain.backfill import BackfillState as S
from retrofill_core.store.backfills import Progress

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
SOME_DAYS = BackfillPublishRequested(intervals=["2020-01-04"])
# (command, approvals) → by state in the order of ``STATES``.
STATES = (S.RUNNING, S.PAUSED, S.IN_REVIEW, S.CANCELLING, S.CANCELLED, S.SUCCEEDED, S.FAILED)
REVIEWS = {
    (PUBLISH, None): (REFUSED, REFUSED, None, REFUSED, REFUSED, REFUSED, REFUSED),
    (PUBLISH, 0): (REFUSED, REFUSED, Enter(S.RUNNING), REFUSED, REFUSED, REFUSED, REFUSED),
    (PUBLISH, 1): (AGAIN, AGAIN, None, AGAIN, AGAIN, AGAIN, AGAIN),
    # Whether those that it names were published, or wait for the next review, only a review knows.
    (SOME_DAYS, 0): (REFUSED, REFUSED, Enter(S.RUNNING), REFUSED, REFUSED, REFUSED, REFUSED),
    (SOME_DAYS, 1): (REFUSED, REFUSED, None, REFUSED, REFUSED, REFUSED, REFUSED),
    (DISCARD, None): (REFUSED, REFUSED, None, REFUSED, REFUSED, REFUSED, REFUSED),
    (DISCARD, 0): (
        *(REFUSED, REFUSED, Enter(S.CANCELLING), Unchanged(S.CANCELLING), Unchanged(S.CANCELLED), REFUSED, REFUSED),
    ),
    (DISCARD, 1): (*(REFUSED, REFUSED, None, Unchanged(S.CANCELLING), Unchanged(S.CANCELLED), REFUSED, REFUSED),),
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


@pytest.mark.parametrize(("command", "approved"), REVIEWS)
def test_what_is_asked_of_a_review(command, approved):
    for state, expected in zip(STATES, REVIEWS[command, approved], strict=True):
        if expected is None:
            continue  # a backfill is in review only while it waits for one
        answer = answer_command(command, str(state), approved=approved)
        assert isinstance(answer, Refuse) if expected is Refuse else answer == expected, (state, answer)
        if isinstance(answer, Enter):
            assert MACHINE.allows(state, answer.state)


def test_only_what_neither_ended_nor_waits_puts_a_review_off():
    for backfill, runs, used_up in JUDGED:
        waiting = replace(runs, any_held=True, any_open=False)
        complete = not (runs.any_failed or runs.any_run_cancelled)
        begins = judge(backfill, waiting, used_up) == BeginReview(complete=complete)
        cancels = runs.failed_since_resume and backfill.on_run_failure == "cancel"
        assert begins == (runs.any_unfinished and backfill.state in (S.RUNNING, S.PAUSED) and not cancels)
        for other in ({"any_open": True}, {"any_publishing": True}, {"any_held": False}):
            assert not isinstance(judge(backfill, replace(waiting, **other), used_up), BeginReview)


@pytest.mark.parametrize(
    ("named", "approvals", "enters"),
    [(None, 0, True), (None, 3, True), (0, 0, True), (2, 2, True), (0, 1, False), (3, 2, False)],
)
def test_the_review_that_a_command_names_is_the_one_that_it_approves(named, approvals, enters):
    command = BackfillPublishRequested(review=named)
    answer = answer_command(command, "in_review", approved=approvals)
    assert (answer == Enter(S.RUNNING)) == enters
    assert enters or (isinstance(answer, Refuse) and "a new review has started" in answer.message)


def runs(*, unfinished=True, failed=False, cancelled=False, since_resume=False):
    """The runs of a backfill, one of which is not accepted."""
    return Progress(
        any_unfinished=unfinished,
        any_open=True,
        any_failed=failed,
        any_run_cancelled=cancelled,
        failed_since_resume=since_resume,
        any_held=False,
        any_publishing=False,
    )


JUDGED = [
    (
        a_backfill(state=str(state), cancel_cause=cause, on_run_failure=str(on_failure)),
        runs(unfinished=unfinished, failed=failed, cancelled=cancelled, since_resume=since_resume),
        used_up,
    )
    for state, cause, on_failure, unfinished, failed, cancelled, since_resume in itertools.product(
        S, (None, "user", "run_failure"), OnRunFailure, *[(False, True)] * 4
    )
    for used_up in (None, "3 runs failed")
]


def test_what_follows_from_how_far_a_backfill_is():
    for each in JUDGED:
        check_what_follows(*each)


def check_what_follows(backfill, runs, used_up):
    decision = judge(backfill, runs, used_up)
    if backfill.state in (S.SUCCEEDED, S.FAILED, S.CANCELLED, S.IN_REVIEW):
        assert decision is None
    elif not runs.any_unfinished:
        if backfill.state == S.CANCELLING:
            expected = S.CANCELLED if backfill.cancel_cause == "user" else S.FAILED
        else:
            expected = S.FAILED if runs.any_failed or runs.any_run_cancelled else S.SUCCEEDED
        assert decision == End(expected)
        assert MACHINE.allows(backfill.state, expected)
    elif runs.failed_since_resume and backfill.on_run_failure == "pause" and backfill.state == S.RUNNING:
        assert decision == Pause("run_failure")
    elif runs.failed_since_resume and backfill.on_run_failure == "cancel" and backfill.state != S.CANCELLING:
        assert decision == CancelForFailure()
    elif used_up and backfill.state == S.RUNNING:
        assert decision == Pause("budget", "3 runs failed")
    else:
        assert decision is None


def test_a_backfill_with_an_unfinished_run_never_ends_and_one_without_always_does():
    for backfill, runs, used_up in JUDGED:
        ends = isinstance(judge(backfill, runs, used_up), End)
        # Something is staged as long as it is in review.
        active = backfill.state in ACTIVE and backfill.state != S.IN_REVIEW
        assert ends == (active and not runs.any_unfinished)


def test_a_failure_before_the_resume_is_not_held_against_it():
    assert judge(a_backfill(on_run_failure="pause"), runs(failed=True), None) is None


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
