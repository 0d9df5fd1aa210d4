"""``judge`` over its full grid: every end, before, at and after the moment, with and without
fire_on_failure.
"""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from retrofill_core.domain.deadline import DeadlineAlert, Reference, Scope, Watched, arm, arm_by_average, judge
from retrofill_core.domain.deadline import DeadlineState as S
from retrofill_core.domain.deadline import End as E

DUE = datetime(2024, 3, 1, 12, tzinfo=UTC)
TICK = timedelta(microseconds=1)
BEFORE, AFTER = DUE - TICK, DUE + TICK
EVER = [False, True]


@pytest.mark.parametrize("fire_on_failure", EVER)
@pytest.mark.parametrize(("now", "expected"), [(BEFORE, None), (DUE, S.MISSED), (AFTER, S.MISSED)])
def test_what_is_not_done_misses_at_the_moment_and_never_before(fire_on_failure, now, expected):
    verdict = judge(Watched(DUE, fire_on_failure), now)
    assert (verdict and verdict.state) == expected


@pytest.mark.parametrize("now", [DUE, AFTER, DUE + timedelta(days=1)])
@pytest.mark.parametrize("ended_at", [BEFORE, DUE])
@pytest.mark.parametrize(
    ("end", "fire_on_failure", "expected"),
    [
        (E.SUCCEEDED, False, S.MET),
        (E.SUCCEEDED, True, S.MET),
        (E.FAILED, False, S.VOID),
        (E.FAILED, True, S.MISSED),
        (E.CANCELLED, False, S.VOID),
        (E.CANCELLED, True, S.MISSED),
        (E.SKIPPED, False, S.VOID),
        (E.SKIPPED, True, S.VOID),
    ],
)
def test_what_ended_in_time_is_decided_by_how_it_ended_however_late_it_is_judged(
    end, fire_on_failure, expected, ended_at, now
):
    verdict = judge(Watched(DUE, fire_on_failure, Scope.RUN, end, ended_at), now)
    assert verdict is not None
    assert verdict.state == expected
    assert not verdict.recovered
    assert (verdict.reason is not None) == (expected == S.VOID)


@pytest.mark.parametrize("fire_on_failure", EVER)
@pytest.mark.parametrize("scope", [Scope.RUN, Scope.TASK])
def test_a_failure_in_time_that_was_retried_is_void_at_once(fire_on_failure, scope):
    verdict = judge(Watched(DUE, fire_on_failure, scope, E.FAILED, BEFORE, superseded=True), BEFORE)
    assert verdict is not None and verdict.state == S.VOID and "retried" in (verdict.reason or "")


def test_a_retry_voids_neither_a_miss_nor_a_task_that_was_done():
    for scope, end, at, expected in ((Scope.RUN, E.FAILED, AFTER, S.MISSED), (Scope.TASK, E.SUCCEEDED, BEFORE, S.MET)):
        verdict = judge(Watched(DUE, False, scope, end, at, superseded=True), AFTER)
        assert verdict is not None and verdict.state == expected


@pytest.mark.parametrize(
    ("end", "expected"), [(E.SUCCEEDED, S.MET), (E.FAILED, S.VOID), (E.CANCELLED, S.VOID), (E.SKIPPED, S.VOID)]
)
def test_what_ended_early_is_decided_before_the_moment(end, expected):
    ended_at = DUE - timedelta(hours=1)
    verdict = judge(Watched(DUE, False, Scope.TASK, end, ended_at), ended_at + TICK)
    assert verdict is not None
    assert verdict.state == expected


@pytest.mark.parametrize("end", [E.FAILED, E.CANCELLED])
def test_one_that_fires_on_failure_is_not_missed_before_its_moment(end):
    watched = Watched(DUE, True, Scope.RUN, end, DUE - timedelta(hours=1))
    assert judge(watched, BEFORE) is None
    assert judge(watched, DUE).state == S.MISSED  # type: ignore[union-attr]


@pytest.mark.parametrize("end", list(E))
@pytest.mark.parametrize("fire_on_failure", EVER)
def test_what_ended_too_late_is_missed_however_it_ended_and_recovered_if_it_succeeded(end, fire_on_failure):
    verdict = judge(Watched(DUE, fire_on_failure, Scope.RUN, end, AFTER), AFTER + TICK)
    assert verdict is not None
    assert verdict.state == S.MISSED
    assert verdict.recovered == (end == E.SUCCEEDED)


@pytest.mark.parametrize("scope", list(Scope))
def test_the_reason_says_what_it_was_about(scope):
    verdict = judge(Watched(DUE, False, scope, E.FAILED, BEFORE), DUE)
    assert verdict is not None
    assert verdict.reason == f"the {scope} failed before the moment"


def average(last_n=10, min_runs=2, seconds=0.0):
    return DeadlineAlert(
        name="slower", reference="AVERAGE_RUNTIME", interval_seconds=seconds, last_n=last_n, min_runs=min_runs
    )


@pytest.mark.parametrize(("runs", "seconds"), [(1, 20), (4, 65)])
def test_an_average_counts_from_the_start_for_each_run_of_a_range(runs, seconds):
    arming = arm_by_average(average(seconds=5), [timedelta(seconds=10), timedelta(seconds=20)], DUE, runs=runs)
    assert (arming.state, arming.due_at) == (S.ARMED, DUE + timedelta(seconds=seconds))


def test_an_average_of_too_few_is_no_deadline():
    arming = arm_by_average(average(min_runs=3), [timedelta(seconds=10)] * 2, DUE)
    assert arming.state == S.VOID
    assert arming.reason == "the average needs 3 successful runs, but there are 2"


@pytest.mark.parametrize("seconds", [3_155_760_000, -3_155_760_000])
def test_a_moment_beyond_the_calendar_stays_inside_it(seconds):
    reference_at = DUE.replace(year=9990 if seconds > 0 else 30)
    alert = DeadlineAlert(name="far", reference=Reference.LOGICAL_DATE, interval_seconds=seconds, fire_if_past=True)
    assert arm(alert, reference_at, DUE).due_at.year in (9998, 2)


@pytest.mark.parametrize("hours", [-14, 0, 14])
@pytest.mark.parametrize("edge", [datetime.min, datetime.max])
def test_a_moment_at_the_calendars_edge_is_one_that_every_zone_and_the_database_can_write(edge, hours):
    at = edge.replace(tzinfo=timezone(timedelta(hours=hours)))
    alert = DeadlineAlert(name="far", reference="FIXED_DATETIME", interval_seconds=0, at=at, fire_if_past=True)
    due_at = arm(alert, at, DUE).due_at
    assert due_at.tzinfo is UTC
    for zone in ("Pacific/Kiritimati", "America/New_York"):
        assert due_at.astimezone(ZoneInfo(zone)).year in (1, 2, 9998, 9999)
    assert abs(due_at.year - edge.year) == 1


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
