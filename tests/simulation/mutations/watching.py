"""Mutations of the deadline-watcher and the callback-runner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import and_, func, select, update

import deadline_watcher.decide
from retrofill.domain.callback import CallbackState
from retrofill.domain.deadline import DeadlineState, Verdict
from retrofill.store import callbacks, deadlines
from retrofill.store.clock import database_now
from retrofill.store.tables import callback, deadline
from tests.simulation.mutations.patch import Patch


def callbacks_without_leases(patch: Patch) -> None:
    """A check reclaims other runners' callbacks immediately."""
    lapsed = callbacks.lock_lapsed

    def at_once(conn: Any, shard: int, excluding: Any) -> Any:
        table = callback
        running = (table.c.shard == shard) & (table.c.state == str(CallbackState.RUNNING))
        conn.execute(update(table).where(running).values(lease_until=database_now(conn)))
        return lapsed(conn, shard, excluding)

    patch(callbacks, "lock_lapsed", at_once)


def callbacks_without_tokens(patch: Patch) -> None:
    """A callback's outcome is recorded without checking the claim's token."""
    leave = callbacks._leave

    def any_token(conn: Any, to: Any, deadline_id: int, token: str, values: Any) -> bool:
        c = callback.c
        now = conn.execute(select(c.token).where(c.deadline_id == deadline_id)).scalar()
        return leave(conn, to, deadline_id, now or token, values)

    patch(callbacks, "_leave", any_token)


def late_is_met(patch: Patch) -> None:
    """A deadline whose run succeeded is met, even if the run was late."""
    judge = deadline_watcher.decide.judge

    def lenient(watched: Any, now: Any) -> Any:
        return Verdict(DeadlineState.MET) if watched.ended == "succeeded" else judge(watched, now)

    patch(deadline_watcher.decide, "judge", lenient)


def failures_fire(patch: Patch) -> None:
    """A run that failed before the deadline misses it, regardless of the alert's settings."""
    judge = deadline_watcher.decide.judge
    patch(
        deadline_watcher.decide,
        "judge",
        lambda watched, now: judge(replace(watched, fire_on_failure=True), now),
    )


def decided_more_than_once(patch: Patch) -> None:
    """A deadline whose run ended is decided again, even if it was decided before."""

    def end(conn: Any, to: Any, rows: Any, decided_at: Any) -> set[int]:
        for row in rows:
            own = {name: value for name, value in row.items() if name != "id"}
            where = deadline.c.id == row["id"]
            conn.execute(update(deadline).where(where).values(state=str(to), decided_at=decided_at, **own))
        return {row["id"] for row in rows}

    def lock(conn: Any, shard: int, ids: Any) -> Any:
        which = and_(deadline.c.shard == shard, deadline.c.id == func.any(list(ids)))
        return deadlines._rows(conn, deadlines._locking(which), {"limit": len(ids)})

    patch(deadlines, "end", end)
    patch(deadlines, "lock_named", lock)
