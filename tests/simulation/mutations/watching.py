"""Mutations of the deadline-watcher, the callback-runner and what inserts callbacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import and_, func, select, update

import backfill_planner.endings
import callback_runner.record
import deadline_watcher.decide
import retrofill_core.deadlines
import run_starter.reports.handling
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.callback import CallbackState, Occasion
from retrofill_core.domain.deadline import DeadlineState, Verdict, judge
from retrofill_core.domain.run import RunState
from retrofill_core.store import callbacks, deadlines, listed, receivers
from retrofill_core.store.sql import database_now
from retrofill_core.store.tables import callback, deadline
from run_starter.reports.steps import End, Requeue
from tests.simulation.mutations.patch import Patch


def callbacks_without_leases(patch: Patch) -> None:
    """A check reclaims other runners' callbacks immediately."""
    lapsed = callbacks.lock_lapsed

    def at_once(conn: Any, shard: int, excluding: Any, set_aside: Any = ()) -> Any:
        table = callback
        running = (table.c.shard == shard) & (table.c.state == str(CallbackState.RUNNING))
        conn.execute(update(table).where(running).values(lease_until=database_now(conn)))
        return lapsed(conn, shard, excluding, set_aside)

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

    def lenient(watched: Any, now: Any) -> Any:
        return Verdict(DeadlineState.MET) if watched.ended == "succeeded" else judge(watched, now)

    patch(deadline_watcher.decide, "judge", lenient)


def failures_fire(patch: Patch) -> None:
    """A run that failed before the deadline misses it, regardless of the alert's settings."""
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


def any_end_is_called(patch: Patch) -> None:
    """A backfill that a user cancelled is called as one that failed."""
    occasions = {**backfill_planner.endings._OCCASIONS, BackfillState.CANCELLED: Occasion.BACKFILL_FAILED}
    patch(backfill_planner.endings, "_OCCASIONS", occasions)


def lost_runs_are_called(patch: Patch) -> None:
    """A run whose driver was lost is called as failed, though it is tried again."""
    call = run_starter.reports.handling._call_for_new_failures

    def too_soon(tx: Any, runs: Any, outcome: Any, definitions: Any, now: Any, partitions: int) -> None:
        steps = {
            id: [End(RunState.FAILED) if isinstance(step, Requeue) and step.loss else step for step in steps]
            for id, steps in outcome.runs.items()
        }
        call(tx, runs, replace(outcome, runs=steps), definitions, now, partitions)

    patch(run_starter.reports.handling, "_call_for_new_failures", too_soon)


def failures_join_what_was_called(patch: Patch) -> None:
    """A failure joins the backfill's last callback, whether it was called or not."""
    any_ = listed.OF_PLACES.where(callback.c.occasion == str(Occasion.RUN_FAILED))
    patch(listed, "_COLLECTING", any_.order_by(callback.c.deadline_id))


def any_order(patch: Patch) -> None:
    """Callbacks about one backfill do not wait for each other."""
    patch(retrofill_core.deadlines, "order_key", lambda *_: None)


def everything_is_dropped(patch: Patch) -> None:
    """A callback that nothing newer follows is dropped, too, if its runs were collected."""
    patch(callback_runner.record, "why_dropped", lambda one: "too late" if one.occasion == "run_failed" else None)


def all_call_a_receiver_that_is_down(patch: Patch) -> None:
    """Callbacks do not wait for the one that probes their receiver."""
    patch(receivers, "waiting", lambda *_: [])


def failures_join_without_a_lock(patch: Patch) -> None:
    """A callback may be called while a failure joins it.

    Random schedules rarely pause the run-starter in between; a test of callbacks replays it.
    """
    unlocked = listed.OF_PLACES.where(callback.c.collects)
    patch(listed, "_COLLECTING", unlocked.order_by(callback.c.deadline_id))
