"""Planning a request: its intervals, with reasons to skip some, or an actionable rejection."""

from __future__ import annotations

import contextlib
import difflib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum

from retrofill.domain.backfill import ReprocessBehavior
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.domain.run import RunState
from retrofill.domain.schedule import TooManyIntervals, boundaries, range_bound


class SkipReason(StrEnum):
    """Why an interval gets no run."""

    ALREADY_EXISTS = "already exists"
    NOT_OVER_YET = "not over yet"
    OUTSIDE_DATES = "outside the pipeline's dates"


class Reason(StrEnum):
    """Why a request is rejected, for programs."""

    UNKNOWN_PIPELINE = "unknown_pipeline"
    BAD_RANGE = "bad_range"
    EMPTY_RANGE = "empty_range"
    NOTHING_TO_RUN = "nothing_to_run"
    TOO_MANY_RUNS = "too_many_runs"
    OVERLAP = "overlap"
    CONF_TOO_LARGE = "conf_too_large"
    FINISH_BY_PAST = "finish_by_past"


@dataclass(frozen=True)
class Rejection:
    """A refused request; ``message`` explains what is wrong and what to do."""

    reason: Reason
    message: str
    conflicting_backfill_id: str | None = None


@dataclass(frozen=True)
class Active:
    """An active backfill whose range overlaps."""

    id: str
    state: str
    start: datetime
    end: datetime


@dataclass(frozen=True)
class History:
    """The pipeline's active backfills and finished runs inside the range."""

    overlapping: Sequence[Active] = ()
    # Latest succeeded or failed run by interval start; cancelled ones do not count.
    finished: Mapping[datetime, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """n intervals as n + 1 rising UTC ``boundaries``, each ``skipped`` for a reason or ``None``."""

    boundaries: Sequence[datetime]
    skipped: Sequence[SkipReason | None]

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
        found = [start for start, reason in zip(self.boundaries, self.skipped, strict=False) if reason is None]
        return found[::-1] if backwards else found


def unknown_pipeline(name: str, known: Iterable[str]) -> Rejection:
    """The rejection of an unknown pipeline, with the nearest known names."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "apply it first: retrofill pipelines apply FILE"
    return Rejection(Reason.UNKNOWN_PIPELINE, f"there is no pipeline {name!r}: {hint}")


def past_finish_by(finish_by: datetime, now: datetime) -> Rejection:
    """The rejection of a ``finish_by`` in the past."""
    message = f"finish_by {_plain(finish_by)} is in the past (now: {_plain(now)}): choose a later time"
    return Rejection(Reason.FINISH_BY_PAST, message)


def find_boundaries(
    pipeline: PipelineDefinition, first: date | datetime, last: date | datetime, max_runs: int
) -> list[datetime] | Rejection:
    """Boundaries of the data intervals with logical dates in [``first``, ``last``]."""
    try:
        start = range_bound(first, pipeline.timezone, end=False)
        stop = range_bound(last, pipeline.timezone, end=True)
    except ValueError as e:
        return Rejection(Reason.BAD_RANGE, str(e))
    if start > stop:
        return Rejection(Reason.BAD_RANGE, f"'from' {_plain(first)} is after 'to' {_plain(last)}: swap them")
    try:
        found = boundaries(pipeline.schedule, pipeline.timezone, start, stop, max_runs)
    except TooManyIntervals:
        return Rejection(
            Reason.TOO_MANY_RUNS,
            f"the range has more than {max_runs:,} data intervals: request a shorter one, or raise RETROFILL_MAX_PLAN_RUNS",
        )
    if not found:
        return Rejection(
            Reason.EMPTY_RANGE,
            f"no data interval of {pipeline.name} (schedule {pipeline.schedule}, {pipeline.timezone}) starts between "
            f"{_plain(first)} and {_plain(last)}: request a longer range",
        )
    return found


def plan(
    pipeline: PipelineDefinition,
    found: Sequence[datetime],
    history: History,
    reprocess: ReprocessBehavior,
    now: datetime,
) -> Plan | Rejection:
    """Decide which intervals get a run. ``now`` is from the database's clock."""
    if history.overlapping:
        winner = history.overlapping[0]
        return Rejection(
            Reason.OVERLAP,
            f"backfill {winner.id} of {pipeline.name} is {winner.state} from {_plain(winner.start)} to "
            f"{_plain(winner.end)}: wait for it, cancel it, or request a range that does not overlap",
            winner.id,
        )
    start, end = _pipeline_dates(pipeline)
    # The boundaries rise, so bisection finds where the pipeline's dates and the present cut them.
    last = len(found) - 1
    first_inside = bisect_left(found, start, 0, last)
    first_beyond = max(first_inside, bisect_right(found, end, 0, last))
    first_not_over = min(max(first_inside, bisect_right(found, now) - 1), first_beyond)
    skipped: list[SkipReason | None] = [SkipReason.OUTSIDE_DATES] * first_inside
    skipped += _by_history(found[first_inside:first_not_over], history, reprocess)
    skipped += [SkipReason.NOT_OVER_YET] * (first_beyond - first_not_over)
    skipped += [SkipReason.OUTSIDE_DATES] * (last - first_beyond)
    made = Plan(found, skipped)
    if made.runs == 0:
        why = ", ".join(f"{count:,} {reason}" for reason, count in made.skipped_counts.items())
        hint = _nothing_hint(made, reprocess)
        return Rejection(Reason.NOTHING_TO_RUN, f"nothing to run: of {len(skipped):,} data intervals {why}{hint}")
    return made


def _by_history(
    starts: Sequence[datetime], history: History, reprocess: ReprocessBehavior
) -> Iterable[SkipReason | None]:
    if not history.finished:
        return [None] * len(starts)
    return (SkipReason.ALREADY_EXISTS if _is_done(history.finished.get(begin), reprocess) else None for begin in starts)


def _is_done(finished: str | None, reprocess: ReprocessBehavior) -> bool:
    """Whether the interval's finished run is kept."""
    if finished is None or reprocess == ReprocessBehavior.COMPLETED:
        return False
    return reprocess == ReprocessBehavior.NONE or finished == RunState.SUCCEEDED


def _nothing_hint(made: Plan, reprocess: ReprocessBehavior) -> str:
    if SkipReason.ALREADY_EXISTS not in made.skipped:
        return ""
    behavior = "'failed' or 'completed'" if reprocess == ReprocessBehavior.NONE else "'completed'"
    return f" (reprocess_behavior {behavior} runs them again)"


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
