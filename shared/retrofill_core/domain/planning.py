"""Planning a request: its intervals, with reasons to skip some, or an actionable rejection."""

from __future__ import annotations

import contextlib
import difflib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

from retrofill_core.domain.backfill import BackfillState, ReprocessBehavior
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import NOT_COVERED, Cover, Finished, covers, latest
from retrofill_core.domain.schedule import Ticks, TooManyIntervals, boundaries, range_bound, written_range
from retrofill_core.domain.secrets import secret_in_conf

# A closed range of logical dates; one date twice for that date only.
Span = tuple[date | datetime, date | datetime]


class SkipReason(StrEnum):
    """Why an interval gets no run."""

    ALREADY_EXISTS = "already exists"
    NOT_OVER_YET = "not over yet"
    OUTSIDE_DATES = "outside the pipeline's dates"
    # Of an undo.
    NOT_PUBLISHED = "published nothing, or did not succeed"
    PUBLISHED_AGAIN = "published again since"
    UNDONE = "undone already"


class Reason(StrEnum):
    """Why a request is rejected, for programs."""

    UNKNOWN_PIPELINE = "unknown_pipeline"
    BAD_RANGE = "bad_range"
    EMPTY_RANGE = "empty_range"
    NOTHING_TO_RUN = "nothing_to_run"
    TOO_MANY_RUNS = "too_many_runs"
    SCHEDULE_CHANGED = "schedule_changed"
    OVERLAP = "overlap"
    CONF_TOO_LARGE = "conf_too_large"
    SECRET_IN_CONF = "secret_in_conf"
    FINISH_BY_PAST = "finish_by_past"
    BUDGET_PAST = "budget_past"
    NOT_REVIEWABLE = "not_reviewable"
    BAD_ARGUMENTS = "bad_arguments"
    UNKNOWN_BACKFILL = "unknown_backfill"
    NOT_UNDOABLE = "not_undoable"


@dataclass(frozen=True)
class Rejection:
    """A refused request; ``message`` explains what is wrong and what to do."""

    reason: Reason
    message: str
    conflicting_backfill_id: str | None = None


@dataclass(frozen=True)
class Active:
    """An active backfill with some of the intervals."""

    id: str
    state: str
    start: datetime
    end: datetime


@dataclass(frozen=True)
class History:
    """The pipeline's active backfills with some of the intervals, and finished runs that overlap them."""

    overlapping: Sequence[Active] = ()
    # The latest succeeded or failed run of each interval, rising by start; cancelled ones do not count.
    finished: Sequence[Finished] = ()


@dataclass(frozen=True)
class Intervals:
    """Data intervals in their order, by their starts and ends in UTC."""

    starts: Sequence[datetime]
    ends: Sequence[datetime]

    @property
    def start(self) -> datetime:
        return self.starts[0]

    @property
    def end(self) -> datetime:
        return self.ends[-1]

    @cached_property
    def parts(self) -> Sequence[tuple[datetime, datetime]]:
        """Stretches of adjacent intervals: one, unless there are gaps."""
        if self.ends[:-1] == self.starts[1:]:
            return [(self.start, self.end)]
        gaps = [n for n, (end, start) in enumerate(zip(self.ends, self.starts[1:], strict=False), 1) if end != start]
        return [(self.starts[first], self.ends[beyond - 1]) for first, beyond in pairwise([0, *gaps, len(self.starts)])]


@dataclass(frozen=True)
class Plan:
    """Intervals, each ``skipped`` for a reason or ``None``.

    ``recognized``: which of them exist already by runs of other intervals, as after a change of the
    schedule. ``partly_done``: which get a run although such runs have done a part of them. ``failed``:
    which are skipped although they are not done.
    """

    intervals: Intervals
    skipped: Sequence[SkipReason | None]
    recognized: Sequence[int] = ()
    partly_done: Sequence[int] = ()
    failed: Sequence[int] = ()

    @property
    def runs(self) -> int:
        """Number of intervals that get a run."""
        return self.skipped.count(None)

    @property
    def skipped_counts(self) -> dict[str, int]:
        """Number of skipped intervals by reason."""
        return dict(Counter(str(reason) for reason in self.skipped if reason is not None))

    def starts(self, *, backwards: bool) -> list[datetime]:
        """The logical dates of the runs, in start order."""
        found = [start for start, reason in zip(self.intervals.starts, self.skipped, strict=True) if reason is None]
        return found[::-1] if backwards else found


def unknown_pipeline(name: str, known: Iterable[str]) -> Rejection:
    """The rejection of an unknown pipeline, with the nearest known names."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "apply it first: retrofill pipelines apply FILE"
    return Rejection(Reason.UNKNOWN_PIPELINE, f"there is no pipeline {name!r}: {hint}")


def with_secret(conf: dict[str, Any]) -> Rejection | None:
    """The rejection of a conf with what looks like a secret."""
    place = secret_in_conf(conf)
    if place is None:
        return None
    return Rejection(
        Reason.SECRET_IN_CONF,
        f"{place} looks like a secret, and whoever may read requests or backfills would see it: leave it out, and give it to the "
        "pool (env in RETROFILL_POOLS, from a file or a variable); tasks find it in os.environ, scripts as {secret[NAME]}",
    )


def not_reviewable(pipeline: PipelineDefinition) -> Rejection | None:
    """The rejection of a review of what a task writes where readers see it at once."""
    if pipeline.unstaged:
        return Rejection(
            Reason.NOT_REVIEWABLE,
            f"a review (publish, --review) is not possible: {pipeline.name} declares writes={list(pipeline.unstaged)!r}, which "
            "is not staged, so readers would see it at once: request it without a review, or stage it and remove the declaration",
        )
    task = next((each for each in pipeline.tasks if each.bypasses_reviews), None)
    if task is None:
        return None
    how = {
        "submit": "{stage:PATH}, {stage_partitions:PATH, PARTITION}, {stage_table:NAME} or {stage_location:NAME} in args or env",
        "sql": "into=Table(NAME, column=…)",
    }.get(task.kind, "run.stage or run.stage_table")
    return Rejection(
        Reason.NOT_REVIEWABLE,
        f"a review (publish, --review) is not possible: task {task.name!r} of {pipeline.name} stages nothing, so readers would "
        f"see what it writes at once: stage that ({how}), or declare the task with writes_nothing=True if it writes nothing",
    )


def past(finish_by: datetime | None, budget_until: datetime | None, now: datetime) -> Rejection | None:
    """The rejection of a moment in the past, if a request has one."""
    for reason, name, moment in (
        (Reason.FINISH_BY_PAST, "finish_by", finish_by),
        (Reason.BUDGET_PAST, "budget.until", budget_until),
    ):
        if moment is not None and moment <= now:
            return Rejection(
                reason, f"{name} {_plain(moment)} is in the past (now: {_plain(now)}): choose a later time"
            )
    return None


def find_intervals(pipeline: PipelineDefinition, asked: Sequence[Span], max_runs: int) -> Intervals | Rejection:
    """The data intervals with logical dates in one of the closed ranges ``asked``, each once."""
    try:
        windows = [_window(each, pipeline.timezone) for each in asked]
    except ValueError as e:
        return Rejection(Reason.BAD_RANGE, str(e))
    for (first, last), (start, stop) in zip(asked, windows, strict=True):
        if start > stop:
            return Rejection(Reason.BAD_RANGE, f"'from' {_plain(first)} is after 'to' {_plain(last)}: swap them")
    try:
        found = _inside(pipeline, _merged(windows), max_runs)
    except TooManyIntervals:
        return Rejection(
            Reason.TOO_MANY_RUNS,
            f"the range has more than {max_runs:,} data intervals: request a shorter one, or raise RETROFILL_MAX_PLAN_RUNS",
        )
    starts = found.starts
    empty = [
        each
        for each, (start, stop) in zip(asked, windows, strict=True)
        if bisect_left(starts, start) == bisect_right(starts, stop)
    ]
    return _empty(pipeline, empty) if empty else found


def _window(asked: Span, timezone: str) -> tuple[datetime, datetime]:
    first, last = asked
    return range_bound(first, timezone, end=False), range_bound(last, timezone, end=True)


def _merged(windows: Sequence[tuple[datetime, datetime]]) -> Iterator[tuple[datetime, datetime]]:
    """The same moments in rising ranges that neither touch nor overlap."""
    start = stop = None
    for first, last in sorted(windows):
        if start is None or stop is None:
            start, stop = first, last
        elif first <= stop + datetime.resolution:
            stop = max(stop, last)
        else:
            yield start, stop
            start, stop = first, last
    if start is not None and stop is not None:
        yield start, stop


def _inside(pipeline: PipelineDefinition, windows: Iterable[tuple[datetime, datetime]], max_runs: int) -> Intervals:
    """The intervals that start in ``windows``, which rise. Raises ``TooManyIntervals``."""
    ticks = Ticks(pipeline.schedule, pipeline.timezone)
    starts: list[datetime] = []
    ends: list[datetime] = []
    for start, stop in windows:
        found = boundaries(ticks, start, stop, max_runs - len(starts))
        starts += found[:-1]
        ends += found[1:]
    return Intervals(starts, ends)


def _empty(pipeline: PipelineDefinition, asked: Sequence[Span]) -> Rejection:
    first, last = asked[0]
    if first == last:
        more = f" (nor on {len(asked) - 1:,} other dates)" if len(asked) > 1 else ""
        where = f"at {_plain(first)}" if isinstance(first, datetime) else f"on {_plain(first)}"
        where = f"{where}{more}: request other dates"
    else:
        where = f"between {_plain(first)} and {_plain(last)}: request a longer range"
    return Rejection(
        Reason.EMPTY_RANGE,
        f"no data interval of {pipeline.name} (schedule {pipeline.schedule}, {pipeline.timezone}) starts {where}",
    )


def plan(
    pipeline: PipelineDefinition,
    found: Intervals,
    history: History,
    reprocess: ReprocessBehavior,
    now: datetime,
) -> Plan | Rejection:
    """Decide which intervals get a run. ``now`` is from the database's clock."""
    if history.overlapping:
        return overlap(pipeline.name, pipeline.timezone, history.overlapping[0])
    start, end = _pipeline_dates(pipeline)
    # They rise, so bisection finds where the pipeline's dates and the present cut them.
    first_inside = bisect_left(found.starts, start)
    first_beyond = max(first_inside, bisect_right(found.starts, end))
    first_not_over = min(max(first_inside, bisect_right(found.ends, now)), first_beyond)
    skipped: list[SkipReason | None] = [SkipReason.OUTSIDE_DATES] * first_inside
    recognized: list[int] = []
    failed: list[int] = []
    partly_done: list[int] = []
    if not history.finished:
        skipped += [None] * (first_not_over - first_inside)
        first_inside = first_not_over
    for number, cover in enumerate(_covered(found, slice(first_inside, first_not_over), history), first_inside):
        if cover is NOT_COVERED:
            skipped.append(None)
            continue
        done = _is_done(cover, reprocess)
        skipped.append(SkipReason.ALREADY_EXISTS if done else None)
        if done and cover.by_others:
            recognized.append(number)
        if done and not cover.succeeded:
            failed.append(number)
        if not done and cover.by_others and not cover.succeeded:
            partly_done.append(number)
    skipped += [SkipReason.NOT_OVER_YET] * (first_beyond - first_not_over)
    skipped += [SkipReason.OUTSIDE_DATES] * (len(found.starts) - first_beyond)
    made = Plan(found, skipped, tuple(recognized), tuple(partly_done), tuple(failed))
    if made.runs == 0:
        why = ", ".join(f"{count:,} {reason}" for reason, count in made.skipped_counts.items())
        hint = _nothing_hint(pipeline, made, reprocess)
        return Rejection(Reason.NOTHING_TO_RUN, f"nothing to run: of {len(skipped):,} data intervals {why}{hint}")
    return made


# What frees the intervals of an active backfill, by its state.
FREES = {
    BackfillState.RUNNING: "wait for its end ('retrofill backfill watch {id}') or cancel it",
    BackfillState.PAUSED: "resume it ('retrofill backfill resume {id}') or cancel it",
    BackfillState.IN_REVIEW: "publish or discard it ('retrofill backfill diff {id}' shows what it would change)",
    BackfillState.CANCELLING: "wait until its last runs have ended ('retrofill backfill watch {id}')",
}


def overlap(pipeline: str, timezone: str, winner: Active) -> Rejection:
    """The rejection of a request for intervals of an active backfill, with what helps in its state."""
    frees = FREES[BackfillState(winner.state)].format(id=winner.id)
    return Rejection(
        Reason.OVERLAP,
        f"backfill {winner.id} of {pipeline} is {winner.state.replace('_', ' ')} and covers "
        f"{written_range(winner.start, winner.end, timezone)}: {frees}, or request other dates",
        winner.id,
    )


def _covered(found: Intervals, some: slice, history: History) -> Iterable[Cover]:
    """How finished runs cover these intervals."""
    return covers(found.starts[some], found.ends[some], latest(history.finished))


def _is_done(cover: Cover, reprocess: ReprocessBehavior) -> bool:
    """Whether what finished runs did for an interval is kept. One that is done in part is not done."""
    if reprocess == ReprocessBehavior.COMPLETED:
        return False
    return cover.succeeded or (reprocess == ReprocessBehavior.NONE and cover.finished)


def _nothing_hint(pipeline: PipelineDefinition, made: Plan, reprocess: ReprocessBehavior) -> str:
    if SkipReason.ALREADY_EXISTS not in made.skipped:
        return ""
    others = f", {len(made.recognized):,} of them by runs of other intervals" if made.recognized else ""
    if made.failed:
        return f"{others}, and {_failed_hint(pipeline, made)}"
    behavior = "'failed' or 'completed'" if reprocess == ReprocessBehavior.NONE else "'completed'"
    return f"{others} (reprocess_behavior {behavior} runs them again)"


def _failed_hint(pipeline: PipelineDefinition, made: Plan) -> str:
    """Which intervals failed, and how they are run again, and no others of the range that are done."""
    starts, zone = made.intervals.starts, ZoneInfo(pipeline.timezone)
    moments = [start.astimezone(zone) for start in starts]
    # A bare date would mean all intervals of a day.
    whole_days = all(each.time() == time.min for each in moments)
    plain = [_plain(moments[n].date() if whole_days else moments[n]) for n in made.failed]
    named = ", ".join(plain[:3]) + (f" and {len(plain) - 3:,} more" if len(plain) > 3 else "")
    # Between the first and the last may be intervals that nobody asked for.
    gaps = len(made.intervals.parts) > 1
    command = f"--dates {','.join(plain)}" if gaps and len(plain) <= 10 else f"--from {plain[0]} --to {plain[-1]}"
    whole = f"retrofill backfill create {pipeline.name} {command} --reprocess failed"
    how = "request the same again with --reprocess failed" if gaps and len(plain) > 10 else whole
    return f"{len(plain):,} of these failed ({named}); to run them again: {how}"


def _pipeline_dates(pipeline: PipelineDefinition) -> tuple[datetime, datetime]:
    """First and last logical date of the pipeline. One at the calendar's edge is no bound."""
    first = datetime.min.replace(tzinfo=UTC)
    last = datetime.max.replace(tzinfo=UTC)
    if pipeline.start is not None:
        with contextlib.suppress(ValueError):
            first = range_bound(pipeline.start, pipeline.timezone, end=False)
    if pipeline.end is not None:
        with contextlib.suppress(ValueError):
            last = range_bound(pipeline.end, pipeline.timezone, end=True)
    return first, last


def _plain(value: date | datetime) -> str:
    return value.isoformat()


# How far back the last tick may be: of a schedule with a day, a week, a month, a year between two, or
# four, as for February 29, and eight around 1900.
BACK = tuple(timedelta(days=days) for days in (1, 8, 32, 367, 4 * 367, 8 * 367))


def schedule_changed(
    pipeline: PipelineDefinition,
    expected: Sequence[tuple[datetime, datetime]],
    found: Intervals | Rejection,
    reprocess: ReprocessBehavior,
) -> Rejection | None:
    """The rejection of a request for ``expected`` intervals, of which the schedule makes what was ``found``."""
    if not expected or (isinstance(found, Rejection) and found.reason != Reason.EMPTY_RANGE):
        return None
    now = set() if isinstance(found, Rejection) else set(zip(found.starts, found.ends, strict=True))
    others = [each for each in sorted(expected) if each not in now]
    if not others:
        return None
    first, last = min(start for start, _ in expected), max(end for _, end in expected)
    start, end = others[0]
    return Rejection(
        Reason.SCHEDULE_CHANGED,
        f"{len(others):,} of {len(expected):,} data intervals, like {written_range(start, end, pipeline.timezone)}, are none of "
        f"{pipeline.schedule}, the schedule that {pipeline.name} has by now: request the intervals "
        f"that it has there, 'retrofill backfill create {pipeline.name} {_range(pipeline, first, last)} "
        f"--reprocess {reprocess}', with the options of the first request",
    )


def _range(pipeline: PipelineDefinition, first: datetime, last: datetime) -> str:
    """The options for all intervals that overlap ``[first, last)``."""
    zone = ZoneInfo(pipeline.timezone)
    begin = (_last_tick(pipeline, first) or first).astimezone(zone)
    until = (_last_tick(pipeline, last - datetime.resolution) or first).astimezone(zone)
    # The whole day, where the days of the range are whole.
    whole = last.astimezone(zone).timetz().replace(tzinfo=None) == time.min
    to = until.date().isoformat() if whole else until.isoformat()
    start = begin.date().isoformat() if begin.timetz().replace(tzinfo=None) == time.min else begin.isoformat()
    return f"--from {start} --to {to}"


def _last_tick(pipeline: PipelineDefinition, moment: datetime) -> datetime | None:
    """The last tick at or before a moment; ``None`` if there is none."""
    for back in BACK:
        found = None
        for tick in Ticks(pipeline.schedule, pipeline.timezone).since(moment - back):
            if tick > moment:
                break
            found = tick
        if found is not None:
            return found
    return None
