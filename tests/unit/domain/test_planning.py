"""Planning a request: its intervals, the reasons why some get no run, and rejections that a user
can act on.
"""

import itertools
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from retrofill_core.domain import schedule
from retrofill_core.domain.backfill import ReprocessBehavior
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import (
    Active,
    History,
    Intervals,
    Plan,
    Reason,
    Rejection,
    SkipReason,
    find_intervals,
    not_reviewable,
    plan,
    unknown_pipeline,
)
from retrofill_core.domain.run import Finished

DAY = timedelta(days=1)
START = datetime(2024, 1, 1, tzinfo=UTC)
FAR = datetime(2030, 1, 1, tzinfo=UTC)


def pipeline(**more):
    given = {
        "name": "flights",
        "schedule": "@daily",
        "tasks": [{"name": "t"}],
        "code": {"module": "m", "attribute": "p"},
    }
    return PipelineDefinition.model_validate({**given, **more})


def days(count):
    return [START + n * DAY for n in range(count + 1)]


def between(bounds):
    """The intervals between these boundaries."""
    return Intervals(bounds[:-1], bounds[1:])


def of_days(states):
    """A history of daily runs, by their starts."""
    return History(finished=[Finished(n, at, at + DAY, states[at]) for n, at in enumerate(sorted(states))])


def boundaries(of, first, last, limit):
    """The boundaries of a range's intervals, or why it is rejected."""
    found = find_intervals(of, [(first, last)], limit)
    return found if isinstance(found, Rejection) else [*found.starts, found.end]


def planned(of, found, history, behavior, now):
    made = plan(of, found, history, behavior, now)
    assert isinstance(made, Plan)
    return made


def refused(of, found, history, behavior, now):
    answer = plan(of, found, history, behavior, now)
    assert isinstance(answer, Rejection)
    return answer


# find_intervals


@pytest.mark.parametrize("first", [date(2024, 1, 1), START])
@pytest.mark.parametrize("last", [date(2024, 1, 3), START + 2 * DAY])
def test_bounds_are_dates_or_moments(first, last):
    assert boundaries(pipeline(), first, last, 10) == days(3)


def test_a_bare_date_is_of_the_pipelines_zone():
    found = boundaries(pipeline(timezone="America/New_York"), date(2024, 1, 1), date(2024, 1, 1), 10)
    assert found == [START + timedelta(hours=5), START + timedelta(hours=29)]


def reject(first, last, limit=10, **more):
    answer = boundaries(pipeline(**more), first, last, limit)
    assert isinstance(answer, Rejection)
    return answer


def test_from_after_to_is_a_bad_range():
    answer = reject(date(2024, 1, 2), date(2024, 1, 1))
    assert answer.reason == Reason.BAD_RANGE
    assert "2024-01-02" in answer.message and "2024-01-01" in answer.message


def test_one_day_is_a_range_and_so_is_one_moment():
    assert boundaries(pipeline(), date(2024, 1, 1), date(2024, 1, 1), 10) == days(1)
    assert boundaries(pipeline(), START, START, 10) == days(1)
    assert reject(START + timedelta(microseconds=1), START).reason == Reason.BAD_RANGE


def test_a_range_without_a_tick_is_empty():
    answer = reject(date(2024, 1, 2), date(2024, 1, 31), schedule="@monthly")
    assert answer.reason == Reason.EMPTY_RANGE
    assert "@monthly" in answer.message and "flights" in answer.message


def test_too_many_are_refused_with_the_limit():
    assert boundaries(pipeline(), date(2024, 1, 1), date(2024, 1, 10), 10) == days(10)
    answer = reject(date(2024, 1, 1), date(2024, 1, 11))
    assert answer.reason == Reason.TOO_MANY_RUNS
    assert "10" in answer.message


@pytest.mark.parametrize(
    ("first", "last", "zone"),
    [
        (datetime(2024, 1, 1), START, "UTC"),
        (START, date(9999, 12, 31), "UTC"),
        (date(1, 1, 1), START, "UTC"),
        (date(1, 1, 1), START, "Asia/Tokyo"),
        (date(1, 1, 1), START, "America/New_York"),
        (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), "Asia/Tokyo"),
    ],
)
def test_a_bound_that_is_no_moment_is_a_bad_range_and_no_error(first, last, zone):
    assert reject(first, last, timezone=zone).reason == Reason.BAD_RANGE


def ask(*dates, limit=10, **more):
    return find_intervals(pipeline(**more), [(each, each) for each in dates], limit)


def at(*dates, **more):
    found = ask(*dates, **more)
    assert isinstance(found, Intervals)
    return found


def test_dates_are_intervals_with_gaps_in_their_order():
    found = at(date(2024, 1, 5), date(2024, 1, 1), START + DAY)
    assert found == Intervals([START, START + DAY, START + 4 * DAY], [START + DAY, START + 2 * DAY, START + 5 * DAY])
    assert found.parts == [(START, START + 2 * DAY), (START + 4 * DAY, START + 5 * DAY)]
    assert (found.start, found.end) == (START, START + 5 * DAY)


def test_adjacent_dates_are_one_part_and_a_date_counts_once():
    found = at(date(2024, 1, 2), date(2024, 1, 1), date(2024, 1, 2), START, date(2024, 1, 3))
    assert found == between(days(3))
    assert found.parts == [(START, START + 3 * DAY)]


def test_a_date_is_all_intervals_that_start_on_it():
    found = at(date(2024, 1, 1), date(2024, 1, 3), limit=48, schedule="@hourly")
    assert [len(found.starts), len(found.parts)] == [48, 2]
    refused = ask(date(2024, 1, 1), date(2024, 1, 3), limit=47, schedule="@hourly")
    assert isinstance(refused, Rejection) and refused.reason == Reason.TOO_MANY_RUNS


def test_the_schedule_is_parsed_once_for_thousands_of_dates(monkeypatch):
    of, parsed = pipeline(), []

    def counted(*given):
        parsed.append(given)
        return CronSim(*given)

    monkeypatch.setattr(schedule, "CronSim", counted)
    schedule.parsed.cache_clear()
    dates = [date(2000, 1, 1) + 2 * n * DAY for n in range(3000)]
    found = find_intervals(of, [(each, each) for each in dates], 10_000)
    assert isinstance(found, Intervals)
    assert (len(found.starts), len(found.parts), len(parsed)) == (3000, 3000, 1)


@pytest.mark.parametrize(
    ("dates", "where"),
    [
        ((date(2024, 2, 2), date(2024, 2, 1), date(2024, 2, 3)), "on 2024-02-02 (nor on 1 other dates): "),
        ((START + timedelta(hours=1),), "at 2024-01-01T01:00:00+00:00: request other dates"),
    ],
)
def test_a_date_without_an_interval_is_named(dates, where):
    answer = ask(*dates, schedule="@monthly")
    assert isinstance(answer, Rejection) and answer.reason == Reason.EMPTY_RANGE
    assert where in answer.message


def test_each_reason_across_gaps():
    """Outside the dates, done before, to run, not over yet."""
    found = at(*(date(2024, 1, day) for day in (1, 3, 5, 7)))
    now = START + 6 * DAY
    made = planned(
        pipeline(start="2024-01-02"), found, of_days({START + 2 * DAY: "failed"}), ReprocessBehavior.NONE, now
    )
    assert made.skipped == [SkipReason.OUTSIDE_DATES, SkipReason.ALREADY_EXISTS, None, SkipReason.NOT_OVER_YET]
    assert made.starts(backwards=True) == [START + 4 * DAY]


# plan


@pytest.mark.parametrize(
    ("finished", "behavior", "expected"),
    [
        (None, "none", None),
        (None, "failed", None),
        (None, "completed", None),
        ("succeeded", "none", SkipReason.ALREADY_EXISTS),
        ("succeeded", "failed", SkipReason.ALREADY_EXISTS),
        ("succeeded", "completed", None),
        ("failed", "none", SkipReason.ALREADY_EXISTS),
        ("failed", "failed", None),
        ("failed", "completed", None),
    ],
)
@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("outside", [False, True])
def test_each_reason_with_each_behavior(finished, behavior, expected, over, outside):
    """Each reason, for the second of two days. The first day gets a run whenever the clock allows
    it.
    """
    found = days(2)
    of_second = found[1]
    history = of_days({of_second: finished} if finished else {})
    now = found[2] + over * timedelta(microseconds=1)
    made = planned(
        pipeline(end="2024-01-01" if outside else "2024-01-02"),
        between(found),
        history,
        ReprocessBehavior(behavior),
        now,
    )
    if over < 0:
        expected = SkipReason.NOT_OVER_YET
    if outside:
        expected = SkipReason.OUTSIDE_DATES
    left = (1,) if (finished, expected) == ("failed", SkipReason.ALREADY_EXISTS) else ()
    assert made == Plan(between(found), [None, expected], failed=left)
    assert made.skipped_counts == ({} if expected is None else {str(expected): 1})
    assert made.runs == (2 if expected is None else 1)


@pytest.mark.parametrize("time", ["", "T00:00:00+00:00"])
def test_the_pipelines_dates_are_a_closed_range_of_logical_dates_or_moments(time):
    dates = {"start": f"2024-01-02{time}", "end": f"2024-01-03{time}"}
    made = planned(pipeline(**dates), between(days(4)), History(), ReprocessBehavior.NONE, FAR)
    assert made.skipped == [SkipReason.OUTSIDE_DATES, None, None, SkipReason.OUTSIDE_DATES]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_dates_of_a_pipeline_at_the_edges_of_the_calendar_bound_nothing(zone):
    unbounded = pipeline(start="0001-01-01", end="9999-12-31", timezone=zone)
    made = planned(unbounded, between(days(2)), History(), ReprocessBehavior.NONE, FAR)
    assert made.skipped == [None, None]


def test_an_interval_of_another_day_has_no_part_in_it():
    elsewhere = of_days({START - DAY: "succeeded", START + 5 * DAY: "succeeded"})
    assert planned(pipeline(), between(days(2)), elsewhere, ReprocessBehavior.NONE, FAR).skipped == [None, None]


def test_an_overlap_names_the_winner():
    winner = Active("w-1", "paused", START, START + DAY)
    history = History(overlapping=[winner, Active("w-2", "running", START, START + DAY)])
    answer = refused(pipeline(), between(days(2)), history, ReprocessBehavior.COMPLETED, FAR)
    assert answer.reason == Reason.OVERLAP
    assert answer.conflicting_backfill_id == "w-1"
    assert "w-1" in answer.message and "paused" in answer.message and "2024-01-01" in answer.message


@pytest.mark.parametrize(
    ("behavior", "finished", "hint"),
    [
        ("none", "succeeded", "'failed' or 'completed'"),
        ("failed", "succeeded", "(reprocess_behavior 'completed'"),
        ("none", "failed", "3 of these failed (2024-01-01, 2024-01-02, 2024-01-03); to run them again: "),
    ],
)
def test_nothing_to_run_counts_the_reasons_and_says_what_would_run_them(behavior, finished, hint):
    answer = refused(
        pipeline(),
        between(days(3)),
        of_days(dict.fromkeys(days(3), finished)),
        ReprocessBehavior(behavior),
        FAR,
    )
    assert answer.reason == Reason.NOTHING_TO_RUN
    assert "of 3 data intervals 3 already exists" in answer.message
    assert hint in answer.message


def test_nothing_to_run_promises_nothing_of_reprocessing_where_it_would_not_help():
    answer = refused(pipeline(), between(days(3)), History(), ReprocessBehavior.NONE, START)
    assert answer.reason == Reason.NOTHING_TO_RUN
    assert "3 not over yet" in answer.message and "reprocess" not in answer.message


def test_an_unknown_pipeline_names_those_that_are_near():
    answer = unknown_pipeline("flight", ["flights", "billing", "flights_daily"])
    assert answer.reason == Reason.UNKNOWN_PIPELINE
    assert "did you mean flights or flights_daily?" in answer.message
    assert "billing" not in answer.message


@pytest.mark.parametrize("known", [[], ["billing"]])
def test_an_unknown_pipeline_like_no_other_says_how_to_apply_it(known):
    assert "pipelines apply" in unknown_pipeline("flights", known).message


@settings(deadline=None)
@given(
    schedule=st.sampled_from(["@hourly", "@daily", "30 2 * * *", "0 */6 * * *", "15 1 * * MON"]),
    zone=st.sampled_from(["UTC", "America/New_York", "Europe/Berlin", "America/Sao_Paulo"]),
    first=st.dates(date(2018, 1, 1), date(2024, 12, 1)),
    count=st.integers(0, 30),
    behavior=st.sampled_from(ReprocessBehavior),
    data=st.data(),
)
def test_every_interval_gets_a_run_or_one_reason(schedule, zone, first, count, behavior, data):
    of = pipeline(schedule=schedule, timezone=zone)
    last = first + timedelta(days=count)
    found = boundaries(of, first, last, 10_000)
    if isinstance(found, Rejection):
        assert found.reason == Reason.EMPTY_RANGE
        return
    assert all(a < b for a, b in itertools.pairwise(found))
    # Adjacent ranges: cutting the range at any day yields the same intervals.
    cut = first + timedelta(days=data.draw(st.integers(0, count)))
    left = boundaries(of, first, cut, 10_000)
    right = [] if cut == last else boundaries(of, cut + DAY, last, 10_000)
    starts = [each for half in (left, right) if not isinstance(half, Rejection) for each in half[:-1]]
    assert starts == found[:-1]

    begins = found[:-1]
    finished = (
        {
            begin: how
            for begin in begins
            if (how := data.draw(st.sampled_from([None, "succeeded", "failed"]))) is not None
        }
        if len(begins) <= 40
        else dict.fromkeys(begins[::3], "failed")
    )
    now = data.draw(st.sampled_from(found))
    ends = dict(itertools.pairwise(found))
    history = History(finished=[Finished(n, at, ends[at], finished[at]) for n, at in enumerate(sorted(finished))])
    made = plan(of, between(found), history, behavior, now)
    if isinstance(made, Rejection):
        assert made.reason == Reason.NOTHING_TO_RUN
        return
    assert made.runs >= 1
    assert made.intervals == between(found)
    assert len(made.skipped) == len(begins)
    assert made.runs + sum(made.skipped_counts.values()) == len(begins)
    assert made.skipped_counts == Counter(str(reason) for reason in made.skipped if reason is not None)
    for begin, over, reason in zip(begins, found[1:], made.skipped, strict=True):
        runs = reason is None
        assert not (runs and over > now)
        assert not (runs and begin in finished and behavior == "none")
        assert not (runs and finished.get(begin) == "succeeded" and behavior == "failed")


IN_PLACE = {"name": "w", "kind": "submit", "submit": {"script": "/w.py", "args": ["--out", "/data"]}}
BY_SCRIPT = {"name": "s", "kind": "submit", "submit": {"script": "/s.py", "env": {"OUT": "{stage:/data/{run.id}}"}}}
BY_PARTITIONS = {
    "name": "s",
    "kind": "submit",
    "submit": {"script": "/s.py", "args": ["{stage_partitions:/t, d={interval.start:%F}}"]},
}
READS = {"name": "r", "kind": "submit", "submit": {"script": "/r.py", "args": ["{staged:/data}"]}}
SURE, UNSURE, STAGES = ({"name": name, "stages": stages} for name, stages in (("f", False), ("g", None), ("h", True)))
CHOOSES = {"name": "b", "kind": "branch"}


@pytest.mark.parametrize(
    ("tasks", "named"),
    [
        ([IN_PLACE], "'w'"),
        ([BY_SCRIPT, READS], "'r'"),
        ([STAGES, SURE], "'f'"),
        ([{**SURE, "writes_nothing": False}], "'f'"),
        ([BY_SCRIPT], None),
        ([BY_PARTITIONS], None),
        ([UNSURE, STAGES, CHOOSES], None),
        ([{**IN_PLACE, "writes_nothing": True}, {**SURE, "writes_nothing": True}], None),
    ],
)
def test_a_review_of_what_a_task_writes_in_place_is_refused(tasks, named):
    refused = not_reviewable(pipeline(tasks=tasks))
    assert (refused is None) == (named is None)
    if refused is not None:
        assert refused.reason == Reason.NOT_REVIEWABLE
        assert named in refused.message and "writes_nothing=True" in refused.message
        assert ("{stage:PATH}" in refused.message) == (named != "'f'")


@pytest.mark.parametrize("where", ["pipeline", "task"])
def test_a_review_of_what_is_declared_as_not_staged_is_refused(where):
    writes = {"writes": ["jdbc:orders"]}
    tasks = [{**STAGES, **(writes if where == "task" else {})}]
    refused = not_reviewable(pipeline(tasks=tasks, **(writes if where == "pipeline" else {})))
    assert refused is not None and refused.reason == Reason.NOT_REVIEWABLE
    assert "writes=['jdbc:orders']" in refused.message


@pytest.mark.parametrize(
    ("more", "asked", "failed", "command"),
    [
        ({}, days(5), days(5)[1:3], "--from 2024-01-02 --to 2024-01-03"),
        ({}, days(5), days(5)[:1], "--from 2024-01-01 --to 2024-01-01"),
        ({}, [days(9)[0], days(9)[4], days(9)[8]], [days(9)[0], days(9)[8]], "--dates 2024-01-01,2024-01-09"),
        (
            {"schedule": "@hourly"},
            [START + timedelta(hours=n) for n in range(3)],
            [START],
            "--from 2024-01-01T00:00:00+00:00 --to 2024-01-01T00:00:00+00:00",
        ),
        (
            {"schedule": "@hourly", "timezone": "Asia/Kolkata"},
            [START + timedelta(minutes=30) + timedelta(hours=n) for n in range(3)],
            [START + timedelta(minutes=30)],
            "--from 2024-01-01T06:00:00+05:30 --to 2024-01-01T06:00:00+05:30",
        ),
    ],
)
def test_where_failed_intervals_are_left_alone_the_whole_command_runs_them_and_no_others(more, asked, failed, command):
    of = pipeline(**more)
    length = timedelta(hours=1) if more else DAY
    found = Intervals(asked, [start + length for start in asked])
    history = History(
        (),
        [
            Finished(n, start, start + length, "failed" if start in failed else "succeeded")
            for n, start in enumerate(asked)
        ],
    )
    answer = plan(of, found, history, ReprocessBehavior.NONE, FAR)
    assert isinstance(answer, Rejection)
    assert answer.message.endswith(f": retrofill backfill create flights {command} --reprocess failed")
    assert f" and {len(failed)} of these failed (" in answer.message
