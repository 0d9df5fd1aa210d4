"""The planner's commands and checks, each over its full grid of states."""

import itertools

import pytest

from backfill_planner.decide import (
    CancelForFailure,
    End,
    Enter,
    PauseForBudget,
    PauseForFailure,
    Refuse,
    Snapshot,
    Unchanged,
    answer_command,
    judge,
)
from retrofill.contract.backfills import BackfillCancelRequested, BackfillPauseRequested, BackfillResumeRequested
from retrofill.domain.backfill import ACTIVE, MACHINE, OnRunFailure
from retrofill.domain.backfill import BackfillState as S
from retrofill.domain.budget import Budget

PAUSE, RESUME, CANCEL = BackfillPauseRequested(), BackfillResumeRequested(), BackfillCancelRequested()

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
}
WISHES = {PAUSE: "pause", RESUME: "resume", CANCEL: "cancel"}


def test_the_grid_of_commands_is_whole():
    assert set(GRID) == set(itertools.product((PAUSE, RESUME, CANCEL), S))


@pytest.mark.parametrize(("command", "state"), GRID)
def test_what_a_command_does_in_each_state(command, state):
    expected, answer = GRID[command, state], answer_command(command, str(state))
    if expected is Refuse:
        assert answer == Refuse(f"the backfill is {state}: there is nothing to {WISHES[command]}")
    else:
        assert answer == expected
    if isinstance(answer, Enter):
        assert MACHINE.allows(state, answer.state)


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
    if snapshot.state in (S.SUCCEEDED, S.FAILED, S.CANCELLED):
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
        assert ends == (snapshot.state in ACTIVE and not snapshot.any_unfinished)


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
