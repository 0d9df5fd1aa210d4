"""A command cancels all runs that it names and that have not ended."""

from datetime import UTC, datetime

import pytest

from backfill_planner.commands import MAX_RUNS, CancelRuns, decide_cancels, decide_publication
from backfill_planner.decide import Refuse, why_failed
from retrofill_core.contract.backfills import CANCELLING
from retrofill_core.domain.run import RunState
from retrofill_core.store.run_commands import Found

DAY = datetime(2020, 1, 3, 5, tzinfo=UTC)


def found(number=1, state="queued", *, asked=False, id=7):
    return Found(number, id, DAY, state, asked)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("state", RunState)
def test_what_becomes_of_a_run_in_each_state(state, asked):
    """One that has ended or was accepted keeps no other from being cancelled."""
    open = state in ("queued", "starting", "running")
    other = found(2, state, asked=asked, id=8)
    answer = decide_cancels(["2020-01-03", "id 8"], [found(), other])
    if open and not asked:
        assert answer == CancelRuns((found(), other), {})
    else:
        assert answer == CancelRuns((found(),), {CANCELLING if open else state: 1})


def test_all_may_be_left():
    ended = [found(id=id, state=state) for id, state in enumerate(["succeeded", "succeeded", "failed"])]
    assert decide_cancels(["2020-01-03"], ended) == CancelRuns((), {"succeeded": 2, "failed": 1})


def test_a_part_without_a_run_is_named_and_the_others_counted():
    answer = decide_cancels(["2020-01-03", "2020-02-01", "id 9"], [found()])
    assert answer == Refuse(
        "the backfill has no run of 2020-02-01: 'retrofill runs list' shows its runs (and 1 more); no run was canceled"
    )


def test_a_run_that_is_named_twice_is_cancelled_once():
    answer = decide_cancels(["2020-01-03", "id 7"], [found(), found(2)])
    assert isinstance(answer, CancelRuns) and [each.run_id for each in answer.runs] == [7]


def test_what_the_reply_could_not_list_is_refused():
    answer = decide_cancels(["2020-01-03"], [found(id=id) for id in range(MAX_RUNS + 1)])
    assert answer == Refuse("it names more than 10,000 runs: name fewer at a time, or cancel the whole backfill")


@pytest.mark.parametrize(
    ("runs", "answer"),
    [
        ([found(state="staged", id=7), found(state="staged", id=8)], [7, 8]),
        ([found(state="staged", id=7), found(2, state="staged", id=7)], [7]),
        ([found(state="staged", id=7), found(state="failed", id=8)], [7]),
        ([found(state="succeeded")], Refuse("none of the runs that it names is staged: nothing was published")),
        (
            [],
            Refuse(
                "the backfill has no run of 2020-01-03: 'retrofill runs list' shows its runs; nothing was published"
            ),
        ),
        (
            [found(state="staged", id=id) for id in range(MAX_RUNS + 1)],
            Refuse("it names more than 10,000 runs: name fewer, or publish all that is staged"),
        ),
    ],
)
def test_of_the_runs_that_a_review_names_the_staged_ones_are_published(runs, answer):
    assert decide_publication(["2020-01-03"], runs) == answer


def test_a_command_that_names_no_run_is_refused():
    assert decide_cancels([], []) == Refuse("it names no run: give intervals (logical dates) or run_ids")


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"succeeded": 28, "failed": 2, "cancelled": 1}, "of 31 runs: 2 failed, 1 cancelled"),
        ({"succeeded": 1000, "cancelled": 1}, "of 1,001 runs: 1 cancelled"),
    ],
)
def test_a_failed_backfill_says_why(runs, message):
    assert why_failed(runs) == message
