"""Requests to cancel single runs: all that a command names, but for those that can no longer be cancelled.

The run-starter cancels them, unless their output is accepted before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from backfill_planner.decide import Refuse, nothing_to_do
from retrofill.system.crash import crash_point
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import CANCELLING, RunCancelAccepted, RunCancelRequested
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.run import CANCELLABLE
from retrofill_core.domain.schedule import range_bound
from retrofill_core.store import run_cancels as store
from retrofill_core.store.rows import Planned
from retrofill_core.store.run_cancels import Found

# Most runs that one command names: its reply lists them, in less than half a megabyte.
MAX_RUNS = 10_000
S = BackfillState


@dataclass(frozen=True)
class CancelRuns:
    """Cancel these runs. ``left``: how many others were named and stay as they are, as the reply says it."""

    runs: tuple[Found, ...]
    left: Mapping[str, int]


def decide(names: Sequence[str], found: Sequence[Found]) -> CancelRuns | Refuse:
    """Decide on a command for a running or paused backfill.

    ``names``: its parts as the user wrote them; ``found``: the runs of each, by its number from 1.
    """
    if not names:
        return Refuse("it names no run: give intervals (logical dates) or run_ids")
    if len(found) > MAX_RUNS:
        return Refuse(f"it names more than {MAX_RUNS:,} runs: name fewer at a time, or cancel the whole backfill")
    refused = refusal(list(unknown(names, found)), "no run was cancelled")
    if refused is not None:
        return refused
    once = {each.run_id: each for each in found}
    why = {id: _why_left(each) for id, each in once.items()}
    return CancelRuns(tuple(once[id] for id in once if why[id] is None), Counter(filter(None, why.values())))


def _why_left(found: Found) -> str | None:
    """The state in which a run is left as it is; ``None``: it is to be cancelled."""
    if found.state not in CANCELLABLE:
        return found.state
    return CANCELLING if found.asked else None


def refusal(problems: Sequence[str], nothing: str) -> Refuse | None:
    """The refusal of a command that names runs, if there is a problem; ``nothing``: what was not done."""
    if not problems:
        return None
    more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
    return Refuse(f"{problems[0]}{more}; {nothing}")


def named(found: Found, zone: str) -> str:
    """The run as replies name it."""
    return f"run {found.run_id} of {found.interval_start.astimezone(ZoneInfo(zone)).isoformat()}"


def unknown(names: Sequence[str], found: Sequence[Found]) -> Iterator[str]:
    """The parts of a command that name no run."""
    there = {each.number for each in found}
    for number, name in enumerate(names, start=1):
        if number not in there:
            yield f"the backfill has no run of {name}: 'retrofill runs list' shows its runs"


def cancel_runs(
    tx: Transaction, row: Planned, command: RunCancelRequested, ce_id: str | None
) -> RunCancelAccepted | Refuse:
    """Record the cancels that are possible. ``row``: the backfill, locked."""
    decision = _decide(tx, row, command)
    if isinstance(decision, Refuse):
        return decision
    ids = tuple(each.run_id for each in decision.runs)
    store.insert_all(tx.conn, row.id, ids, ce_id)
    crash_point("run-cancel:written")
    intervals = tuple(each.interval_start for each in decision.runs)
    return RunCancelAccepted(
        backfill_id=row.id, pipeline=row.pipeline, run_ids=ids, intervals=intervals, left=dict(decision.left)
    )


def _decide(tx: Transaction, row: Planned, command: RunCancelRequested) -> CancelRuns | Refuse:
    if row.state == S.CANCELLING:
        return Refuse("the backfill is cancelling: all its runs are being cancelled")
    if row.state not in (S.RUNNING, S.PAUSED):
        return nothing_to_do(row.state, "cancel")
    definition: Mapping[str, str] = row.definition
    zone = definition.get("timezone", "UTC")
    try:
        windows = days(command.intervals, zone)
    except ValueError as e:
        return Refuse(f"{e}; no run was cancelled")
    # Runs change states while this is decided: the run-starter decides again, from the rows.
    by_start = store.starting_within(tx.conn, row.id, windows, MAX_RUNS + 1) if windows else []
    by_id = store.with_ids(tx.conn, row.id, command.run_ids, after=len(windows)) if command.run_ids else []
    names = [*(each.isoformat() for each in command.intervals), *(f"id {each}" for each in command.run_ids)]
    return decide(names, [*by_start, *by_id])


def days(bounds: Iterable[date | datetime], zone: str) -> list[tuple[datetime, datetime]]:
    """The moments that logical dates name, as closed ranges. Raises ``ValueError``."""
    return [(range_bound(each, zone, end=False), range_bound(each, zone, end=True)) for each in bounds]
