"""Requests to cancel single runs: all runs that a command names, or none.

The run-starter cancels them, unless their output is accepted before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from sqlalchemy import RowMapping

from backfill_planner.decide import NO_BACKFILL, Refuse, nothing_to_do
from retrofill.bus.crash import crash_point
from retrofill.bus.transaction import Transaction
from retrofill.contract.backfills import BackfillCommandRejected, RunCancelAccepted, RunCancelRequested
from retrofill.domain.backfill import BackfillState
from retrofill.domain.run import MACHINE, RunState
from retrofill.domain.schedule import range_bound
from retrofill.store import run_cancels as store
from retrofill.store.run_cancels import Found

# Most runs that one command cancels: its reply lists them.
MAX_RUNS = 1000
S = BackfillState


@dataclass(frozen=True)
class CancelRuns:
    """Cancel these runs."""

    runs: tuple[Found, ...]


def decide(names: Sequence[str], found: Sequence[Found], zone: str) -> CancelRuns | Refuse:
    """Decide on a command for a running or paused backfill.

    ``names``: its parts as the user wrote them; ``found``: the runs of each, by its number from 1.
    """
    if not names:
        return Refuse("it names no run: give intervals (logical dates) or run_ids")
    if len(found) > MAX_RUNS:
        return Refuse(f"it names more than {MAX_RUNS:,} runs: name fewer, or cancel the whole backfill")
    problems = list(_problems(names, found, zone))
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        return Refuse(f"{problems[0]}{more}; no run was cancelled")
    return CancelRuns(tuple({each.run_id: each for each in found}.values()))


def _problems(names: Sequence[str], found: Sequence[Found], zone: str) -> Iterator[str]:
    there = {each.number for each in found}
    for number, name in enumerate(names, start=1):
        if number not in there:
            yield f"the backfill has no run of {name}: 'retrofill runs list' shows its runs"
    for each in found:
        run = f"run {each.run_id} of {each.interval_start.astimezone(ZoneInfo(zone)).isoformat()}"
        if each.state in MACHINE.terminal:
            yield f"{run} is {each.state}: there is nothing to cancel"
        elif each.state in (RunState.PUBLISHING, RunState.STAGED):
            yield f"{run} is {each.state}: its output was accepted and can no longer be cancelled"
        elif each.asked:
            yield f"{run} is already being cancelled"


def cancel_runs(
    tx: Transaction, id: str, row: RowMapping | None, command: RunCancelRequested, ce_id: str | None
) -> RunCancelAccepted | BackfillCommandRejected:
    """Record the cancels, if all of them are possible. ``row``: the backfill, locked."""
    decision = _decide(tx, row, command)
    if isinstance(decision, Refuse):
        return BackfillCommandRejected(backfill_id=id, command=command.type, message=decision.message)
    assert row is not None
    ids = tuple(each.run_id for each in decision.runs)
    store.insert_all(tx.conn, id, ids, ce_id)
    crash_point("run-cancel:written")
    intervals = tuple(each.interval_start for each in decision.runs)
    return RunCancelAccepted(backfill_id=id, pipeline=row["pipeline"], run_ids=ids, intervals=intervals)


def _decide(tx: Transaction, row: RowMapping | None, command: RunCancelRequested) -> CancelRuns | Refuse:
    if row is None:
        return NO_BACKFILL
    if row["state"] == S.CANCELLING:
        return Refuse("the backfill is cancelling: all its runs are being cancelled")
    if row["state"] not in (S.RUNNING, S.PAUSED):
        return nothing_to_do(row["state"], "cancel")
    definition: Mapping[str, str] = row["definition"]
    zone = definition.get("timezone", "UTC")
    try:
        windows = [_window(each, zone) for each in command.intervals]
    except ValueError as e:
        return Refuse(f"{e}; no run was cancelled")
    # Runs change states while this is decided: the run-starter decides again, from the rows.
    by_start = store.starting_within(tx.conn, row["id"], windows, MAX_RUNS + 1) if windows else []
    by_id = store.with_ids(tx.conn, row["id"], command.run_ids, after=len(windows)) if command.run_ids else []
    names = [*(each.isoformat() for each in command.intervals), *(f"id {each}" for each in command.run_ids)]
    return decide(names, [*by_start, *by_id], zone)


def _window(bound: date | datetime, zone: str) -> tuple[datetime, datetime]:
    return range_bound(bound, zone, end=False), range_bound(bound, zone, end=True)
