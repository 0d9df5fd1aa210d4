"""What the planner would decide about a request, as data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection

from retrofill.client import estimates
from retrofill.client.pipeline_facts import find_pipeline
from retrofill.client.pools import why_unserved
from retrofill.contract.backfills import BackfillRequested
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.domain.planning import Active, Plan, Reason, Rejection, find_intervals, past, plan
from retrofill.settings import Settings
from retrofill.store.clock import database_now
from retrofill.store.pipelines import StoredPipeline
from retrofill.store.planning import history, overlapping

WILL_RUN = "run"


@dataclass(frozen=True)
class Preview:
    """A plan, how long it would take (``retrofill.client.estimates.preview``), and why it would wait."""

    definition: PipelineDefinition
    plan: Plan
    expected: dict[str, Any]
    pool_wait: str | None

    @cached_property
    def outcomes(self) -> list[str]:
        """What becomes of each interval."""
        return [WILL_RUN if reason is None else str(reason) for reason in self.plan.skipped]

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
            "stretches": stretches_as_json(made, outcomes),
            **({"intervals": listed} if each else {}),
            "expected": self.expected,
            "pool": self.definition.pool,
            "pool_wait": self.pool_wait,
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
    decision = preview(conn, settings, stored, request)
    if isinstance(decision, Rejection):
        return Refusal(decision, _overlapping(conn, settings, stored, request, decision))
    return Preview(
        stored.definition,
        decision,
        estimates.preview(conn, stored, decision.runs, request.max_active_runs),
        why_unserved(conn, stored.definition.pool),
    )


def preview(
    conn: Connection, settings: Settings, stored: StoredPipeline, request: BackfillRequested
) -> Plan | Rejection:
    """The planner's decision if it were made now, by the same rules on the same data."""
    now = database_now(conn)
    if (too_late := past(request.finish_by, request.budget_until, now)) is not None:
        return too_late
    found = find_intervals(stored.definition, request.spans, settings.max_plan_runs)
    if isinstance(found, Rejection):
        return found
    known = history(conn, stored.no, found)
    return plan(stored.definition, found, known, request.reprocess_behavior, now)


def _overlapping(
    conn: Connection, settings: Settings, stored: StoredPipeline, request: BackfillRequested, rejection: Rejection
) -> Sequence[Active]:
    if rejection.reason != Reason.OVERLAP:
        return ()
    found = find_intervals(stored.definition, request.spans, settings.max_plan_runs)
    assert not isinstance(found, Rejection)  # an overlap is of intervals
    return overlapping(conn, stored.no, found)


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
