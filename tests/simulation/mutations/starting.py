"""Mutations of the run-starter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import false, update

import run_starter.endings
import run_starter.handler
import run_starter.leases
import run_starter.reports
from retrofill.store import claims
from retrofill.store import runs as store
from retrofill.store.clock import database_now
from retrofill.store.tables import run
from run_starter import decide
from run_starter.decide import RunOutcome
from run_starter.hosting import DriverHost
from run_starter.leases import Leases
from tests.simulation import primitives
from tests.simulation.mutations.patch import Patch


def no_attempt_guard(patch: Patch) -> None:
    """A report applies to the live attempt, regardless of the report's own attempt."""
    fold = decide.fold

    def fold_any(reports: Sequence[Any], runs: Mapping[int, Any], tasks: Any, most: int) -> Any:
        return fold([r.model_copy(update={"attempt": runs[r.run_id].attempt}) for r in reports], runs, tasks, most)

    patch(run_starter.reports, "fold", fold_any)


def leases_by_the_clock(patch: Patch) -> None:
    """A lease ends by the database clock alone, even with unread heartbeats."""

    def check(self: Any, tx: Any) -> None:
        self._expire(tx, database_now(tx.conn))
        tx.schedule_check("leases", 0.5)

    patch(Leases, "check", check)
    _without_own_clock(patch)


def leases_by_the_owners_settings(patch: Patch) -> None:
    """A heartbeat extends a lease by the owner's setting instead of the attempt's."""
    handle_reports, extend_leases = run_starter.reports.handle_reports, store.extend_leases

    def handle(*args: Any, lease_seconds: float, **more: Any) -> list[int]:
        _process().set_to = lease_seconds
        return handle_reports(*args, lease_seconds=lease_seconds, **more)

    def extend(conn: Any, until: Mapping[tuple[int, int], Any]) -> None:
        extend_leases(conn, dict.fromkeys(until, database_now(conn) + timedelta(seconds=_process().set_to)))

    patch(run_starter.handler, "handle_reports", handle)
    patch(store, "extend_leases", extend)
    _without_own_clock(patch)


def begins_without_asking(patch: Patch) -> None:
    """A driver begins without checking that its attempt is still the live one."""
    patch(DriverHost, "may_begin", lambda self, launch: launch.lease_seconds)


def claims_beyond_limits(patch: Patch) -> None:
    """A pipeline may have one live run more than its limit."""
    lock_pipelines = claims.lock_pipelines

    def generous(conn: Any, numbers: Any) -> dict[int, int]:
        return {no: limit + 1 for no, limit in lock_pipelines(conn, numbers).items()}

    patch(claims, "lock_pipelines", generous)


def starts_the_last_first(patch: Patch) -> None:
    """Queued runs are started in no particular order."""
    next_queued = claims.next_queued

    def any_order(conn: Any, wanted: Mapping[str, int]) -> Any:
        found = next_queued(conn, dict.fromkeys(wanted, 1000))
        return {id: list(reversed(rows))[: wanted[id]] for id, rows in found.items()}

    patch(claims, "next_queued", any_order)


def claims_of_paused_backfills(patch: Patch) -> None:
    """A backfill keeps starting runs although a failed run should stop it."""
    patch(claims, "failed_since_resume", false)
    patch(claims, "_CLAIMANTS", claims._claimants())


def loss_by_assignment(patch: Patch) -> None:
    """A lost run is queued again from any state."""

    def lose(row: Any, sofar: RunOutcome, most: int, *, counted: bool, error: Any = None) -> None:
        sofar.lost, sofar.counted = True, counted
        sofar.ends = decide.RunState.QUEUED

    def write_end(tx: Any, to: Any, ending: Any, now: Any) -> None:
        values = {**store.NOT_LIVE, "state": str(to), "finished_at": None if to == "queued" else now}
        for row, outcome in ending:
            error = None if outcome.error is None else outcome.error.model_dump(exclude_none=True)
            tx.conn.execute(update(run).where(run.c.id == row["id"]).values(**values, error=error))

    patch(decide, "lose", lose)
    patch(run_starter.leases, "lose", lose)
    patch(run_starter.endings, "_write_end", write_end)


def _without_own_clock(patch: Patch) -> None:
    """Treat every lease as over by the owner's own clock."""
    patch(Leases, "_remaining", lambda self, shard, run_id, seconds: 0.0)


def _process() -> Any:
    return primitives.scheduler().me().process
