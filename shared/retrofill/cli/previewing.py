"""``retrofill backfill dry-run``: what the planner would decide, as data and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection

from retrofill.cli.output import counts, moment, print_table, print_text
from retrofill.contract.backfills import BackfillRequested
from retrofill.domain.planning import Plan, Rejection, find_intervals, past, plan
from retrofill.settings import Settings
from retrofill.store.clock import database_now
from retrofill.store.pipelines import StoredPipeline
from retrofill.store.planning import history

WILL_RUN = "run"


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


def outcomes_of(made: Plan) -> list[str]:
    """What becomes of each interval."""
    return [WILL_RUN if reason is None else str(reason) for reason in made.skipped]


def plan_as_json(request: BackfillRequested, made: Plan, outcomes: Sequence[str]) -> dict[str, Any]:
    intervals = zip(made.intervals.starts, made.intervals.ends, outcomes, strict=True)
    return {
        "accepted": True,
        "pipeline": request.pipeline,
        "range_start": made.intervals.start,
        "range_end": made.intervals.end,
        "runs": made.runs,
        "skipped": made.skipped_counts,
        "intervals": [{"start": start, "end": end, "outcome": outcome} for start, end, outcome in intervals],
    }


def print_plan(made: Plan, outcomes: Sequence[str], zone: str) -> None:
    """One line per stretch of adjacent intervals with the same outcome, and the totals."""
    starts, ends = made.intervals.starts, made.intervals.ends
    print_table(
        [f"from ({zone})", "until", "intervals", "outcome"],
        [
            [moment(starts[first], zone), moment(ends[end - 1], zone), end - first, outcome]
            for first, end, outcome in stretches(
                outcomes, {n for n in range(1, len(starts)) if starts[n] != ends[n - 1]}
            )
        ],
        empty="no intervals",
    )
    print_text(f"would create {made.runs:,} runs of {len(outcomes):,} intervals ({counts(Counter(outcomes))})")


def stretches(outcomes: Sequence[str], gaps: Collection[int] = ()) -> list[tuple[int, int, str]]:
    """Adjacent equal outcomes as (first index, end index, outcome). ``gaps``: indexes after gaps."""
    found: list[tuple[int, int, str]] = []
    for i, outcome in enumerate(outcomes):
        if found and found[-1][2] == outcome and i not in gaps:
            found[-1] = (found[-1][0], i + 1, outcome)
        else:
            found.append((i, i + 1, outcome))
    return found
