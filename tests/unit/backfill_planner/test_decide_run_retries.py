"""A command retries all runs that it names, or none, with the reason in one line."""

from datetime import UTC, datetime

import pytest

from backfill_planner.commands import RetryRuns, decide_retries
from backfill_planner.decide import Refuse
from retrofill_core.contract.backfills import MAX_LISTED
from retrofill_core.domain.run import RunState
from retrofill_core.store.run_commands import Found

DAY = datetime(2020, 1, 3, 5, tzinfo=UTC)
ZONE = "America/New_York"


def found(number=1, state="failed", *, id=7):
    return Found(number, id, DAY, state, asked=False)


def test_failed_runs_are_retried_once_each():
    assert decide_retries(["2020-01-03", "2020-01-03"], [found(), found(2), found(2, id=8)], ZONE) == RetryRuns(
        frozenset([7, 8])
    )


@pytest.mark.parametrize("state", sorted(set(RunState) - {RunState.FAILED, RunState.CANCELLED}))
def test_a_run_that_did_not_fail_is_refused(state):
    answer = decide_retries(["2020-01-03", "2020-01-04"], [found(), found(2, state, id=8)], ZONE)
    assert answer == Refuse(
        f"run 8 of 2020-01-03T00:00:00-05:00 is {state}: only failed runs are retried; no run was retried"
    )


def test_a_cancelled_run_is_refused_with_what_to_do():
    answer = decide_retries(["2020-01-03"], [found(state="cancelled")], ZONE)
    assert isinstance(answer, Refuse)
    assert "is cancelled: request its interval again once the backfill has ended" in answer.message


def test_a_date_without_a_run_is_named_and_the_others_counted():
    answer = decide_retries(["2020-02-01", "2020-02-02"], [], ZONE)
    assert answer == Refuse(
        "the backfill has no run of 2020-02-01: 'retrofill runs list' shows its runs (and 1 more); no run was retried"
    )


def test_what_the_reply_could_not_list_is_refused():
    answer = decide_retries(["2020-01-03"], [found(id=id) for id in range(MAX_LISTED + 1)], ZONE)
    assert answer == Refuse("it names more than 1,000 runs: name fewer, or retry all failed runs")
