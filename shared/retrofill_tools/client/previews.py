"""The planner's decision about a request before it is made, and what it would take."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import Connection

from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.domain.estimate import Left, estimate
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Active, History, Plan, Rejection, find_intervals
from retrofill_core.domain.run import Finished, RunState, Stretch, between, latest
from retrofill_core.settings import Settings
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.planning import decide, shared_places
from retrofill_core.store.progress import history
from retrofill_core.store.sql import database_now
from retrofill_tools.client.backfills import TimeLeft, time_left
from retrofill_tools.client.hosts import Host, find_hosts, serving, why_unserved
from retrofill_tools.client.pipelines import find_pipeline, unstaged_by_pipeline

WILL_RUN = "run"
NO_HISTORY = "no history: no attempt of this pipeline has ended"


@dataclass(frozen=True)
class DoneByOthers:
    """Intervals in a row, and the succeeded runs that overlap them, of other intervals."""

    start: datetime
    end: datetime
    intervals: int
    runs: Sequence[Finished]

    def as_json(self) -> dict[str, Any]:
        """The same as data, with the first of the runs' intervals."""
        first = {"start": self.runs[0].start, "end": self.runs[0].end}
        return {
            "start": self.start,
            "end": self.end,
            "intervals": self.intervals,
            "by": {"runs": len(self.runs), "first": first},
        }


@dataclass(frozen=True)
class Expectation:
    """What a plan would take, and ``why`` that is expected."""

    estimate: TimeLeft | None
    core_hours: float | None
    why: str


@dataclass(frozen=True)
class Preview:
    """A plan, what it would take, why it would wait, and what else one should know before it runs."""

    definition: PipelineDefinition
    plan: Plan
    expected: Expectation
    pool_wait: str | None
    notes: Sequence[str] = ()
    # What finished runs have done in the range.
    done: Sequence[Stretch] = ()

    @cached_property
    def outcomes(self) -> list[str]:
        """What becomes of each interval."""
        return [WILL_RUN if reason is None else str(reason) for reason in self.plan.skipped]

    @property
    def recognized(self) -> list[DoneByOthers]:
        """Which intervals exist already by runs of other intervals."""
        return [self._done_by_others(some) for some in _runs_of(self.plan.recognized)]

    @property
    def partly_done(self) -> list[DoneByOthers]:
        """Which intervals get a run although runs of other intervals have done a part of them."""
        return [self._done_by_others(some) for some in _runs_of(self.plan.partly_done)]

    def _done_by_others(self, some: range) -> DoneByOthers:
        of = self.plan.intervals
        start, end = of.starts[some[0]], of.ends[some[-1]]
        runs = {each.run for each in between(self.done, start, end) if each.run.state == RunState.SUCCEEDED}
        return DoneByOthers(start, end, len(some), sorted(runs, key=lambda each: each.start))

    def as_json(self, *, each: bool = True) -> dict[str, Any]:
        """The plan as data; ``each``: with every interval, not only stretches of them."""
        made, outcomes = self.plan, self.outcomes
        starts, ends = made.intervals.starts, made.intervals.ends
        intervals = zip(starts, ends, outcomes, strict=True) if each else ()
        listed = [{"start": start, "end": end, "outcome": outcome} for start, end, outcome in intervals]
        return {
            "accepted": True,
            "pipeline": self.definition.name,
            "timezone": self.definition.timezone,
            "range_start": made.intervals.start,
            "range_end": made.intervals.end,
            "runs": made.runs,
            "skipped": made.skipped_counts,
            "recognized": [each.as_json() for each in self.recognized],
            "partly_done": [each.as_json() for each in self.partly_done],
            "stretches": stretches_as_json(made, outcomes),
            **({"intervals": listed} if each else {}),
            "expected": self.expected,
            "pool": self.definition.pool,
            "pool_wait": self.pool_wait,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Refusal:
    """Why there would be no plan, and the active backfills that are in its way."""

    rejection: Rejection
    overlap: Sequence[Active]

    def as_json(self, *, each: bool = True) -> dict[str, Any]:  # noqa: ARG002 - as of a preview
        """The reason as data."""
        return {
            "accepted": False,
            "reason": self.rejection.reason,
            "message": self.rejection.message,
            "overlap": [
                {"id": other.id, "state": other.state, "range_start": other.start, "range_end": other.end}
                for other in self.overlap
            ],
        }


def look_ahead(conn: Connection, settings: Settings, request: BackfillRequested) -> Preview | Refusal:
    """What would become of a request that is made now. Raises ``NotThere`` for an unknown pipeline."""
    stored = find_pipeline(conn, request.pipeline)
    decision, known = preview(conn, settings, stored, request)
    if isinstance(decision, Rejection):
        return Refusal(decision, known.overlapping)
    definition, hosts = stored.definition, find_hosts(conn)
    seats = _seats(definition, hosts)
    return Preview(
        definition,
        decision,
        expectation(conn, stored, decision.runs, request.max_active_runs, seats),
        why_unserved(hosts, definition.pool),
        [*notes_on(definition, request, decision, seats), *_turns(conn, definition)],
        latest(known.finished),
    )


def notes_on(definition: PipelineDefinition, request: BackfillRequested, made: Plan, seats: int) -> Iterator[str]:
    """What one should know before the plan runs. ``seats``: those of the hosts of its pool."""
    at_once = _at_once(definition, request.max_active_runs)
    for task in definition.tasks:
        if task.bypasses_reviews:
            parallel = f", by up to {at_once:,} runs in parallel" if min(at_once, made.runs) > 1 else ""
            yield (
                f"task {task.name!r} stages nothing: readers see what it writes at once{parallel} (if it writes nothing, "
                "declare it with writes_nothing=True)"
            )
    if 0 < seats < min(at_once, made.runs):
        yield f"{at_once:,} attempts may be live at once, but the hosts of pool {definition.pool} have {seats:,} seats"
    yield from shared_places(definition, request.conf, made.intervals)


def _turns(conn: Connection, definition: PipelineDefinition) -> Iterator[str]:
    """What is written by one attempt at a time, and by which other pipelines too."""
    if not definition.unstaged:
        return
    of_others = unstaged_by_pipeline(conn)
    for name in definition.unstaged:
        others = [each for each, names in of_others.items() if name in names and each != definition.name]
        also = f", also those of {', '.join(others)}" if others else ""
        yield f"runs that write {name} take turns, one attempt at a time{also}"


def preview(
    conn: Connection, settings: Settings, stored: StoredPipeline, request: BackfillRequested
) -> tuple[Plan | Rejection, History]:
    """The planner's decision if it were made now, and what it would be made from."""
    found = find_intervals(stored.definition, request.spans, settings.max_plan_runs)
    return decide(conn, settings, stored, request, found)


def _runs_of(numbers: Sequence[int]) -> list[range]:
    """Rising numbers as ranges of consecutive ones."""
    found: list[range] = []
    for n in numbers:
        if found and found[-1].stop == n:
            found[-1] = range(found[-1].start, n + 1)
        else:
            found.append(range(n, n + 1))
    return found


def stretches(made: Plan, outcomes: Sequence[str]) -> list[tuple[int, int, str]]:
    """Adjacent intervals with equal outcomes as (first index, end index, outcome)."""
    starts, ends = made.intervals.starts, made.intervals.ends
    return equal_stretches(outcomes, {n for n in range(1, len(starts)) if starts[n] != ends[n - 1]})


def stretches_as_json(made: Plan, outcomes: Sequence[str]) -> list[dict[str, Any]]:
    """The stretches as data."""
    starts, ends = made.intervals.starts, made.intervals.ends
    return [
        {"start": starts[first], "end": ends[end - 1], "intervals": end - first, "outcome": outcome}
        for first, end, outcome in stretches(made, outcomes)
    ]


def equal_stretches(outcomes: Sequence[str], gaps: Collection[int] = ()) -> list[tuple[int, int, str]]:
    """Adjacent equal outcomes as (first index, end index, outcome). ``gaps``: indexes after gaps."""
    found: list[tuple[int, int, str]] = []
    for i, outcome in enumerate(outcomes):
        if found and found[-1][2] == outcome and i not in gaps:
            found[-1] = (found[-1][0], i + 1, outcome)
        else:
            found.append((i, i + 1, outcome))
    return found


def expectation(
    conn: Connection, stored: StoredPipeline, runs: int, max_active_runs: int | None, seats: int
) -> Expectation:
    """How long ``runs`` would take, and what they would cost, from the pipeline's last attempts.

    Assumes that drivers are free: as many as may be live at once, of those there are (``seats``).
    """
    definition = stored.definition
    past = history(conn, stored.no, database_now(conn))
    at_once = _at_once(definition, max_active_runs)
    drivers = min(at_once, seats or at_once)
    found = estimate(past.took, Left(runs, (), 0.0, past.ranges), drivers)
    if found is None:
        return Expectation(None, None, NO_HISTORY)
    measured = sum(each.runs for each in past.took)
    days = max(1, round(past.took[-1].began / 86_400))
    of = past.core_seconds_per_run
    return Expectation(
        estimate=time_left(found),
        core_hours=None if of is None else round(of * runs / 3600, 3),
        why=f"from {measured:,} runs of the last {'day' if days == 1 else f'{days:,} days'}",
    )


def _at_once(definition: PipelineDefinition, asked: int | None) -> int:
    return 1 if definition.unstaged else min(asked or definition.max_active_runs, definition.max_active_runs)


def _seats(definition: PipelineDefinition, hosts: Sequence[Host]) -> int:
    """Of all hosts of its pool, those of its executor."""
    submits = definition.executor == "spark-submit"
    return sum(host.busy + host.warm + (host.cold if submits else 0) for host in serving(hosts, definition.pool))
