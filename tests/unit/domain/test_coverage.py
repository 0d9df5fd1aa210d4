"""Intervals that are done after a change of the schedule or zone: those that succeeded runs cover whole.

What is right is computed another way: minute by minute, or in quarters of an hour.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrofill_core.domain.backfill import ReprocessBehavior
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import History, Intervals, Plan, Rejection, SkipReason, find_intervals, plan
from retrofill_core.domain.run import Finished, RunState, between, covers, latest

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SUCCEEDED, FAILED = RunState.SUCCEEDED, RunState.FAILED


def pipeline(schedule: str, zone: str = "UTC") -> PipelineDefinition:
    code = {"module": "m", "attribute": "p"}
    given = {"name": "p", "schedule": schedule, "timezone": zone, "tasks": [{"name": "t"}], "code": code}
    return PipelineDefinition.model_validate(given)


def intervals(schedule: str, zone: str, first: date, last: date) -> Intervals:
    found = find_intervals(pipeline(schedule, zone), [(first, last)], 100_000)
    assert isinstance(found, Intervals)
    return found


def runs_of(found: Intervals, state: str = SUCCEEDED, first_id: int = 1) -> list[Finished]:
    spans = zip(found.starts, found.ends, strict=True)
    return [Finished(id, start, end, state) for id, (start, end) in enumerate(spans, first_id)]


def planned(found: Intervals, finished: Sequence[Finished], behavior: str) -> Plan:
    rising = sorted(finished, key=lambda run: (run.start, run.end))
    made = plan(pipeline("@daily"), found, History(finished=rising), ReprocessBehavior(behavior), NOW)
    if isinstance(made, Rejection):
        return Plan(found, [SkipReason.ALREADY_EXISTS] * len(found.starts))
    return made


def by_minute(
    found: Intervals, finished: Sequence[Finished], behavior: str, step: timedelta = timedelta(minutes=1)
) -> list[bool]:
    """Whether each interval gets a run: the rule, minute by minute, or by another step that all bounds are multiples of."""

    def minutes(start: datetime, end: datetime) -> Iterator[datetime]:
        while start < end:
            yield start
            start += step

    last: dict[datetime, Finished] = {}
    for run in sorted(finished, key=lambda run: run.id):
        last.update(dict.fromkeys(minutes(run.start, run.end), run))

    def kept(minute: datetime, start: datetime, end: datetime) -> bool:
        run = last.get(minute)
        own = run is not None and (run.start, run.end) == (start, end)
        return run is not None and (run.state == SUCCEEDED or (behavior == "none" and own))

    return [
        behavior == "completed" or not all(kept(each, start, end) for each in minutes(start, end))
        for start, end in zip(found.starts, found.ends, strict=True)
    ]


SCHEDULES = {
    "hours": "@hourly",
    "days": "@daily",
    "weeks": "@weekly",
    "months": "@monthly",
    "six hours": "0 */6 * * *",
    "days at noon": "0 12 * * *",
    "working days": "0 0 * * MON-FRI",
}
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")
# Three months with both changes of the clocks in some zone: days of 23 and 25 hours.
SPRING, AUTUMN = (date(2024, 2, 15), date(2024, 4, 15)), (date(2024, 10, 1), date(2024, 11, 30))


@pytest.mark.parametrize(
    ("zone_before", "zone_now"), [*itertools.combinations(ZONES, 2), *zip(ZONES, ZONES, strict=True)]
)
@pytest.mark.parametrize(
    "season", [pytest.param(SPRING, id="spring", marks=pytest.mark.long), pytest.param(AUTUMN, id="autumn")]
)
def test_each_change_of_schedule_and_zone(zone_before: str, zone_now: str, season: tuple[date, date]) -> None:
    """Any schedule before, any now: an interval is kept exactly if every minute of it succeeded."""
    draw = random.Random(f"{zone_before} {zone_now} {season}")
    first, last = season
    for before, now in draw.sample([*itertools.product(SCHEDULES.values(), repeat=2)], 4):
        behavior = draw.choice(["none", "failed"])
        done = runs_of(intervals(before, zone_before, first, last))
        lost = {draw.randrange(len(done)) for _ in range(2)}
        finished = [
            run._replace(state=FAILED) if n in lost and n % 2 else run
            for n, run in enumerate(done)
            if n not in lost or n % 2
        ]
        found = intervals(now, zone_now, first + 5 * DAY, first + 36 * DAY)
        made = planned(found, finished, behavior)
        expected = by_minute(found, finished, behavior, timedelta(minutes=15))
        assert [reason is None for reason in made.skipped] == expected, (before, now)


@pytest.mark.parametrize(
    ("before", "now", "recognized", "partly"),
    [
        ("@hourly", "@daily", 3, 0),
        ("@daily", "@hourly", 72, 0),
        ("@daily", "0 12 * * *", 2, 1),
        ("@daily", "@daily", 0, 0),
    ],
)
def test_what_is_recognized_and_what_overlaps_in_part(before: str, now: str, recognized: int, partly: int) -> None:
    done = runs_of(intervals(before, "UTC", date(2024, 1, 1), date(2024, 1, 3)))
    # A day more, so that there is something to run.
    found = intervals(now, "UTC", date(2024, 1, 1), date(2024, 1, 4))
    made = planned(found, done, "none")
    assert (len(made.recognized), len(made.partly_done)) == (recognized, partly)
    assert set(made.recognized) <= {n for n, reason in enumerate(made.skipped) if reason is not None}
    assert set(made.partly_done) <= {n for n, reason in enumerate(made.skipped) if reason is None}


HOURS = intervals("@hourly", "UTC", date(2024, 1, 1), date(2024, 1, 1))
A_DAY = Intervals([START], [START + DAY])
OF_THE_DAY = Finished(1, START, START + DAY, SUCCEEDED)


@pytest.mark.parametrize(
    ("finished", "found", "behavior", "runs", "partly"),
    [
        pytest.param(runs_of(HOURS)[1:], A_DAY, "none", 1, 1, id="an hour is missing"),
        pytest.param(runs_of(HOURS)[:1], A_DAY, "none", 1, 1, id="only the hour that starts with the day"),
        pytest.param(runs_of(HOURS), A_DAY, "none", 0, 0, id="each hour"),
        pytest.param(runs_of(HOURS), A_DAY, "completed", 1, 0, id="all again"),
        pytest.param(
            [run._replace(end=run.end - timedelta(minutes=1)) for run in runs_of(HOURS)],
            A_DAY,
            "none",
            1,
            1,
            id="gaps of a minute",
        ),
        pytest.param([OF_THE_DAY], HOURS, "none", 0, 0, id="the day covers its hours"),
        pytest.param([OF_THE_DAY._replace(state=FAILED)], HOURS, "none", 24, 0, id="a failed day does not"),
        pytest.param([OF_THE_DAY._replace(state=FAILED)], A_DAY, "none", 0, 0, id="its own failed run"),
        pytest.param([OF_THE_DAY._replace(state=FAILED)], A_DAY, "failed", 1, 0, id="its own failed run again"),
        pytest.param(
            [OF_THE_DAY, Finished(9, START, START + HOUR, FAILED)], HOURS, "failed", 1, 0, id="an hour failed since"
        ),
        pytest.param(
            [OF_THE_DAY, Finished(9, START, START + HOUR, FAILED)], HOURS, "none", 0, 0, id="which counts as run"
        ),
        pytest.param(
            [OF_THE_DAY, Finished(9, START, START + HOUR, FAILED)], A_DAY, "failed", 1, 0, id="so the day is not done"
        ),
        pytest.param(
            [*runs_of(HOURS, FAILED, 9)[:1], OF_THE_DAY], HOURS, "failed", 1, 0, id="a failure after the day's run"
        ),
        pytest.param([*runs_of(HOURS, FAILED, 0)[:1], OF_THE_DAY], HOURS, "failed", 0, 0, id="and one before it"),
        pytest.param(
            [OF_THE_DAY._replace(end=START + 30 * HOUR), Finished(2, START - 30 * HOUR, START + HOUR, SUCCEEDED)],
            A_DAY,
            "none",
            0,
            0,
            id="two runs that overlap",
        ),
    ],
)
def test_one_day_and_its_hours(
    finished: list[Finished], found: Intervals, behavior: str, runs: int, partly: int
) -> None:
    made = planned(found, finished, behavior)
    assert (made.runs, len(made.partly_done)) == (runs, partly)


SPANS = st.tuples(st.integers(0, 60), st.integers(1, 30), st.sampled_from([SUCCEEDED, FAILED]))


@settings(deadline=None)
@given(spans=st.lists(SPANS, max_size=12), found=st.lists(st.integers(1, 12), min_size=1, max_size=8), data=st.data())
def test_any_runs_and_any_intervals(spans: list[tuple[int, int, str]], found: list[int], data: st.DataObject) -> None:
    ids = data.draw(st.permutations(range(len(spans))))
    minute = timedelta(minutes=1)
    finished = [
        Finished(id, START + at * minute, START + (at + length) * minute, state)
        for id, (at, length, state) in zip(ids, spans, strict=True)
    ]
    # Only the latest run of an interval is looked at.
    finished = list({(run.start, run.end): run for run in sorted(finished, key=lambda run: run.id)}.values())
    bounds = [START + n * minute for n in itertools.accumulate([5, *found])]
    of = Intervals(bounds[:-1], bounds[1:])
    for behavior in ("none", "failed"):
        made = planned(of, finished, behavior)
        assert [reason is None for reason in made.skipped] == by_minute(of, finished, behavior)


def test_stretches_rise_and_are_found() -> None:
    runs = [OF_THE_DAY, Finished(9, START + 5 * HOUR, START + 6 * HOUR, FAILED)]
    found = latest(runs)
    assert [(each.start.hour, each.end.hour, each.run.id) for each in found] == [(0, 5, 1), (5, 6, 9), (6, 0, 1)]
    assert list(between(found, START + 5 * HOUR, START + 6 * HOUR)) == found[1:2]
    assert list(between(found, START - DAY, START)) == list(between(found, START + DAY, START + 2 * DAY)) == []
    assert list(between(found, START, START + DAY)) == found
    assert [cover.by_others for cover in covers(A_DAY.starts, A_DAY.ends, found)] == [False]
