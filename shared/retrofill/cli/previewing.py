"""``retrofill backfill dry-run``: what the planner would decide, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from retrofill.cli.output import counts, moment, print_table, print_text
from retrofill.client.previewing import stretches
from retrofill.domain.planning import Plan


def print_plan(made: Plan, outcomes: Sequence[str], zone: str) -> None:
    """One line per stretch of adjacent intervals with the same outcome, and the totals."""
    print_stretches(made, outcomes, zone)
    print_text(f"would create {made.runs:,} runs of {len(outcomes):,} intervals ({counts(Counter(outcomes))})")


def print_stretches(made: Plan, outcomes: Sequence[str], zone: str) -> None:
    """One line per stretch of adjacent intervals with the same outcome."""
    starts, ends = made.intervals.starts, made.intervals.ends
    print_table(
        [f"from ({zone})", "until", "intervals", "outcome"],
        [
            [moment(starts[first], zone), moment(ends[end - 1], zone), end - first, outcome]
            for first, end, outcome in stretches(made, outcomes)
        ],
        empty="no intervals",
    )
