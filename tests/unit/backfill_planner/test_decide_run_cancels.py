"""Which runs a command cancels: all that it names, or none, with the reason in one line."""

from datetime import UTC, datetime

import pytest

from backfill_planner.decide import Refuse, why_failed
from backfill_planner.run_cancels import MAX_RUNS, CancelRuns, decide
from retrofill_core.domain.run import MACHINE, RunState
from retrofill_core.store.run_cancels import Found

DAY = datetime(2020, 1, 3, 5, tzinfo=UTC)
ZONE = "America/New_York"


def found(number=1, state="queued", *, asked=False, id=7):
    return Found(number, id, DAY, state, asked)


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.STARTING, RunState.RUNNING])
def test_a_run_without_accepted_output_is_cancelled(state):
    assert decide(["2020-01-03"], [found(state=state)], ZONE) == CancelRuns((found(state=state),))


REFUSED: dict[str, str] = {
    **{state: f"is {state}: there is nothing to cancel" for state in MACHINE.terminal},
    **{
        state: f"is {state}: its output was accepted and can no longer be cancelled"
        for state in (RunState.PUBLISHING, RunState.STAGED)
    },
}


@pytest.mark.parametrize("state", sorted(REFUSED))
def test_a_run_that_ended_or_was_accepted_is_refused(state):
    answer = decide(["2020-01-03", "id 8"], [found(), found(2, state, id=8)], ZONE)
    # Its interval as the pipeline's users write it.
    assert answer == Refuse(f"run 8 of 2020-01-03T00:00:00-05:00 {REFUSED[state]}; no run was cancelled")


def test_a_repeat_is_refused():
    answer = decide(["2020-01-03"], [found(asked=True)], ZONE)
    assert isinstance(answer, Refuse) and "is already being cancelled" in answer.message


def test_a_part_without_a_run_is_named_and_the_others_counted():
    answer = decide(["2020-01-03", "2020-02-01", "id 9"], [found()], ZONE)
    assert answer == Refuse(
        "the backfill has no run of 2020-02-01: 'retrofill runs list' shows its runs (and 1 more); no run was cancelled"
    )


def test_a_run_that_is_named_twice_is_cancelled_once():
    answer = decide(["2020-01-03", "id 7"], [found(), found(2)], ZONE)
    assert isinstance(answer, CancelRuns) and [each.run_id for each in answer.runs] == [7]


def test_what_the_reply_could_not_list_is_refused():
    answer = decide(["2020-01-03"], [found(id=id) for id in range(MAX_RUNS + 1)], ZONE)
    assert answer == Refuse("it names more than 1,000 runs: name fewer, or cancel the whole backfill")


def test_a_command_that_names_no_run_is_refused():
    assert decide([], [], ZONE) == Refuse("it names no run: give intervals (logical dates) or run_ids")


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"succeeded": 28, "failed": 2, "cancelled": 1}, "of 31 runs: 2 failed, 1 cancelled"),
        ({"succeeded": 1000, "cancelled": 1}, "of 1,001 runs: 1 cancelled"),
    ],
)
def test_a_failed_backfill_says_why(runs, message):
    assert why_failed(runs) == message
