"""``retrofill backfill dry-run``: what the planner would decide, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from retrofill_core.domain.planning import Plan
from retrofill_tools.cli.output import counts, moment, print_table, print_text
from retrofill_tools.client.previews import DoneByOthers, Preview, stretches


def print_plan(found: Preview) -> None:
    """One line per stretch of adjacent intervals with the same outcome, the totals, and what other intervals' runs did."""
    outcomes, zone = found.outcomes, found.definition.timezone
    print_stretches(found.plan, outcomes, zone)
    print_text(f"would create {found.plan.runs:,} runs of {len(outcomes):,} intervals ({counts(Counter(outcomes))})")
    for done, what in (
        (found.recognized, "exist already, done"),
        (found.partly_done, "would run although they are done in part"),
    ):
        if done:
            print_text(_by_others(done, what, zone))


def _by_others(done: Sequence[DoneByOthers], what: str, zone: str) -> str:
    """``what`` is true of these intervals, in one line."""
    number = sum(each.intervals for each in done)
    runs = {run.id: run for each in done for run in each.runs}
    first = runs[min(runs)]
    where = f"{moment(done[0].start, zone)} – {moment(done[-1].end, zone)}"
    by = f"by {len(runs):,} {'run' if len(runs) == 1 else 'runs'} of other intervals"
    return f"{number:,} ({where}) {what} {by}, like {moment(first.start, zone)} – {moment(first.end, zone)}"


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
