"""The whole grid of ``judge``: every run state, before, at and after the moment, with and without fire_on_failure."""

from datetime import UTC, datetime, timedelta

import pytest

from retrofill.domain.deadline import DeadlineState as S
from retrofill.domain.deadline import Watched, arm, judge
from retrofill.domain.pipeline import DeadlineAlert, Reference
from retrofill.domain.run import UNFINISHED
from retrofill.domain.run import RunState as R

DUE = datetime(2024, 3, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
BEFORE, AFTER = DUE - TICK, DUE + TICK
ENDS = (R.SUCCEEDED, R.FAILED, R.CANCELLED)


@pytest.mark.parametrize("fire_on_failure", [False, True])
@pytest.mark.parametrize("state", UNFINISHED)
@pytest.mark.parametrize(("now", "expected"), [(BEFORE, None), (DUE, S.MISSED), (AFTER, S.MISSED)])
def test_a_run_that_is_not_done_misses_at_the_moment_and_never_before(state, fire_on_failure, now, expected):
    verdict = judge(Watched(DUE, fire_on_failure, state, None), now)
    assert (verdict and verdict.state) == expected


@pytest.mark.parametrize("now", [DUE, AFTER, DUE + timedelta(days=1)])
@pytest.mark.parametrize("finished", [BEFORE, DUE])
@pytest.mark.parametrize(
    ("state", "fire_on_failure", "expected"),
    [
        (R.SUCCEEDED, False, S.MET),
        (R.SUCCEEDED, True, S.MET),
        (R.FAILED, False, S.VOID),
        (R.FAILED, True, S.MISSED),
        (R.CANCELLED, False, S.VOID),
        (R.CANCELLED, True, S.VOID),
    ],
)
def test_what_ended_in_time_is_decided_by_how_it_ended_however_late_it_is_judged(
    state, fire_on_failure, expected, finished, now
):
    verdict = judge(Watched(DUE, fire_on_failure, state, finished), now)
    assert verdict is not None
    assert verdict.state == expected
    assert (verdict.reason is not None) == (expected == S.VOID)


@pytest.mark.parametrize(("state", "expected"), [(R.SUCCEEDED, S.MET), (R.FAILED, S.VOID), (R.CANCELLED, S.VOID)])
def test_what_ended_early_is_decided_before_the_moment(state, expected):
    finished = DUE - timedelta(hours=1)
    verdict = judge(Watched(DUE, False, state, finished), finished + TICK)
    assert verdict is not None
    assert verdict.state == expected


def test_a_failure_fires_before_the_moment_where_the_alert_wants_it():
    finished = DUE - timedelta(hours=1)
    verdict = judge(Watched(DUE, True, R.FAILED, finished), finished + TICK)
    assert verdict is not None
    assert verdict.state == S.MISSED


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize("fire_on_failure", [False, True])
def test_what_ended_too_late_is_missed_however_it_ended(state, fire_on_failure):
    verdict = judge(Watched(DUE, fire_on_failure, state, AFTER), AFTER + TICK)
    assert verdict is not None
    assert verdict.state == S.MISSED


@pytest.mark.parametrize(
    ("seconds", "fire_if_past", "expected"),
    [(1, False, S.ARMED), (0, False, S.VOID), (-1, False, S.VOID), (0, True, S.ARMED), (-1, True, S.ARMED)],
)
def test_a_moment_already_past_is_void_unless_the_alert_fires_then(seconds, fire_if_past, expected):
    alert = DeadlineAlert(
        name="slow", reference=Reference.RUN_QUEUED_AT, interval_seconds=seconds, fire_if_past=fire_if_past
    )
    arming = arm(alert, DUE, DUE)
    assert arming.state == expected
    assert arming.due_at == DUE + timedelta(seconds=seconds)
    assert (arming.reason is not None) == (expected == S.VOID)
