"""The planner's commands and looks, each on its full grid."""

import itertools

import pytest

from backfill_planner.decide import (
    AlreadyThere,
    CancelForFailure,
    End,
    Enter,
    PauseForFailure,
    Refuse,
    Standing,
    answer_command,
    cause_of,
    judge,
)
from retrofill.contract.backfills import BackfillCancelRequested, BackfillPauseRequested, BackfillResumeRequested
from retrofill.domain.backfill import ACTIVE, MACHINE, OnRunFailure
from retrofill.domain.backfill import BackfillState as S

PAUSE, RESUME, CANCEL = BackfillPauseRequested(), BackfillResumeRequested(), BackfillCancelRequested()

# (command, state) → what it leads to
GRID = {
    (PAUSE, S.RUNNING): Enter(S.PAUSED),
    (PAUSE, S.PAUSED): AlreadyThere(S.PAUSED),
    (PAUSE, S.CANCELLING): Refuse,
    (PAUSE, S.CANCELLED): Refuse,
    (PAUSE, S.SUCCEEDED): Refuse,
    (PAUSE, S.FAILED): Refuse,
    (RESUME, S.RUNNING): AlreadyThere(S.RUNNING),
    (RESUME, S.PAUSED): Enter(S.RUNNING),
    (RESUME, S.CANCELLING): Refuse,
    (RESUME, S.CANCELLED): Refuse,
    (RESUME, S.SUCCEEDED): Refuse,
    (RESUME, S.FAILED): Refuse,
    (CANCEL, S.RUNNING): Enter(S.CANCELLING),
    (CANCEL, S.PAUSED): Enter(S.CANCELLING),
    (CANCEL, S.CANCELLING): AlreadyThere(S.CANCELLING),
    (CANCEL, S.CANCELLED): AlreadyThere(S.CANCELLED),
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


STANDINGS = [
    Standing(*each)
    for each in itertools.product(
        S, (None, "user", "run_failure"), OnRunFailure, (False, True), (False, True), (False, True)
    )
]


@pytest.mark.parametrize("standing", STANDINGS, ids=str)
def test_what_follows_from_how_far_a_backfill_is(standing):
    decision = judge(standing)
    if standing.state in (S.SUCCEEDED, S.FAILED, S.CANCELLED):
        assert decision is None
    elif not standing.any_unfinished:
        if standing.state == S.CANCELLING:
            expected = S.CANCELLED if standing.cancel_cause == "user" else S.FAILED
        else:
            expected = S.FAILED if standing.any_failed else S.SUCCEEDED
        assert decision == End(expected)
        assert MACHINE.allows(standing.state, expected)
    elif standing.failed_since_resume and standing.on_run_failure == "pause" and standing.state == S.RUNNING:
        assert decision == PauseForFailure()
    elif standing.failed_since_resume and standing.on_run_failure == "cancel" and standing.state != S.CANCELLING:
        assert decision == CancelForFailure()
    else:
        assert decision is None


def test_a_backfill_with_an_unfinished_run_never_ends_and_one_without_always_does():
    for standing in STANDINGS:
        ends = isinstance(judge(standing), End)
        assert ends == (standing.state in ACTIVE and not standing.any_unfinished)


def test_a_failure_before_the_resume_is_not_held_against_it():
    resumed = Standing(S.RUNNING, None, OnRunFailure.PAUSE, True, any_failed=True, failed_since_resume=False)
    assert judge(resumed) is None


@pytest.mark.parametrize(
    ("decision", "cause"),
    [
        (Enter(S.CANCELLING), "user"),
        (Enter(S.PAUSED), "user"),
        (PauseForFailure(), "run_failure"),
        (CancelForFailure(), "run_failure"),
    ],
)
def test_who_is_behind_a_change(decision, cause):
    assert cause_of(decision) == cause
