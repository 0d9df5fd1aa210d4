"""Looks at a backfill: start runs where there is room, or cancel what has not started. Decided from the rows alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import RowMapping

from retrofill.bus import metrics
from retrofill.bus.crash import crash_point
from retrofill.bus.faults import Conflict
from retrofill.bus.topics import Topic
from retrofill.bus.transaction import Transaction
from retrofill.domain.backfill import BackfillState, OnRunFailure
from retrofill.domain.run import RunState
from retrofill.messages.runs import RunCancelled
from retrofill.store import backfills
from retrofill.store import runs as store
from retrofill.store.clock import database_now
from retrofill.store.tables import run
from run_starter.decide import YIELD_SECONDS, Demand, claim
from run_starter.definitions import Definitions
from run_starter.endings import facts, resolve_deadlines, tell_publishing
from run_starter.executors import Executor, Launch
from run_starter.leases import LOOK

# A row that is locked by somebody else is looked at again this soon.
AGAIN_SECONDS = 0.1
POLL_SECONDS = 5.0
CANCEL_CHUNK = 500


@dataclass
class Claims:
    """What an instance remembers between looks; all of it is a hint, the rows decide."""

    definitions: Definitions
    executor: Executor
    instance: str
    lease_seconds: float
    launched: Callable[[], None]
    # Backfills that wait for a driver of this instance.
    starving: set[str] = field(default_factory=set)
    live: dict[str, int] = field(default_factory=dict)
    pipeline_of: dict[str, int] = field(default_factory=dict)
    yielding_since: dict[str, float] = field(default_factory=dict)

    def forget(self, backfill_id: str) -> None:
        """The backfill ended or is somebody else's."""
        self.starving.discard(backfill_id)
        for remembered in (self.live, self.pipeline_of, self.yielding_since):
            remembered.pop(backfill_id, None)

    def look(self, tx: Transaction, backfill_id: str) -> None:
        """Look at one backfill, without waiting for anybody's lock."""
        self.starving.discard(backfill_id)
        row = backfills.lock(tx.conn, backfill_id, wait=False)
        if row is None:
            metrics.CLAIMS_PUT_OFF.labels("backfill_locked").inc()
            if backfills.still_active(tx.conn, backfill_id):
                tx.look_at(f"b:{backfill_id}", AGAIN_SECONDS)
            return
        self.pipeline_of[backfill_id] = row["pipeline_no"]
        adopted = self._adopt(tx, row)
        match row["state"]:
            case BackfillState.RUNNING:
                self._start(tx, row, self.executor.free() - adopted)
            case BackfillState.CANCELLING:
                _cancel(tx, row)
            case BackfillState.PAUSED:
                pass
            case _:
                self.forget(backfill_id)

    def _adopt(self, tx: Transaction, backfill: RowMapping) -> int:
        """Publish what accepted attempts staged whose publisher was lost; how many were given to our drivers."""
        id = backfill["id"]
        if not store.has_orphans(tx.conn, id):
            return 0
        # They have their slots already: it takes nothing but a driver.
        free = self.executor.free()
        until = database_now(tx.conn) + timedelta(seconds=self.lease_seconds)
        rows = store.adopt(tx.conn, id, free, self.instance, until) if free > 0 else []
        if len(rows) >= free:
            self.starving.add(id)
        launches = [
            self._launch_of(tx, backfill, row, publication=row["publication"], outputs=tuple(row["outputs"]["folders"]))
            for row in rows
        ]
        for row, launch in zip(rows, launches, strict=True):
            told = facts(row, launch.pipeline.name, database_now(tx.conn))
            tell_publishing(tx, told, launch.outputs, launch.publication)
        if launches:
            tx.after_commit.append(lambda: self._hand_over(launches))
            tx.look_at(LOOK, self.lease_seconds)
        return len(launches)

    def _start(self, tx: Transaction, row: RowMapping, free: int) -> None:
        id = row["id"]
        if row["on_run_failure"] != OnRunFailure.CONTINUE and backfills.progress(tx.conn, row).failed_since_resume:
            return
        if free <= 0:
            metrics.CLAIMS_PUT_OFF.labels("no_driver").inc()
            self.starving.add(id)
            return
        limit = store.lock_pipeline(tx.conn, row["pipeline_no"])
        if limit is None:
            metrics.CLAIMS_PUT_OFF.labels("pipeline_locked").inc()
            tx.look_at(f"b:{id}", AGAIN_SECONDS)
            return
        room = store.room(tx.conn, id, row["pipeline_no"], limit)
        now = time.monotonic()
        decision = claim(
            Demand(
                backfill_limit=row["max_active_runs"],
                pipeline_limit=room.pipeline_limit,
                backfill_slots=room.backfill_slots,
                pipeline_slots=room.pipeline_slots,
                rivals=room.rivals,
                free_drivers=free,
                yielded_for=now - self.yielding_since.get(id, now),
            )
        )
        if not decision.slots:
            metrics.CLAIMS_PUT_OFF.labels("left_to_others" if decision.left else "limit").inc()
        self.live[id] = len(room.backfill_slots) + len(decision.slots)
        if len(decision.slots) >= free:
            # It may have wanted more: whichever driver is free next, whoever's it was, may be for it.
            self.starving.add(id)
        if not decision.slots and not room.backfill_slots:
            # All slots are others'. A notification tells when one is free; this is the poll behind it.
            tx.look_at(f"b:{id}", POLL_SECONDS)
        if decision.left:
            since = self.yielding_since.setdefault(id, now)
            tx.look_at(f"b:{id}", max(AGAIN_SECONDS, since + YIELD_SECONDS - now))
            store.notify(tx.conn, store.SLOT_CHANNEL, [row["pipeline_no"]])
        else:
            self.yielding_since.pop(id, None)
        self._claim(tx, row, decision.slots)

    def _claim(self, tx: Transaction, backfill: RowMapping, slots: tuple[tuple[int, int], ...]) -> None:
        queued = store.next_queued(tx.conn, backfill["id"], len(slots)) if slots else []
        if not queued:
            return
        now = database_now(tx.conn)
        given = [
            {"id": row["id"], "attempt": row["attempt"], "slot": slot, "pipeline_slot": pipeline_slot}
            for row, (slot, pipeline_slot) in zip(queued, slots, strict=False)
        ]
        values = {
            "attempt": run.c.attempt + 1,
            "lease_until": now + timedelta(seconds=self.lease_seconds),
            "host": self.instance,
        }
        if store.move(tx.conn, RunState.STARTING, given, values, frm=[RunState.QUEUED]) != len(given):
            raise Conflict("a queued run was taken by somebody else")
        crash_point("claim:written")
        definition = self.definitions.of(tx.conn, backfill["id"])
        attempts = [(row["id"], row["attempt"] + 1) for row in queued]
        store.insert_task_runs(tx.conn, attempts, [task.name for task in definition.tasks])
        launches = [self._launch_of(tx, backfill, row, attempt=row["attempt"] + 1) for row in queued]
        tx.after_commit.append(lambda: self._launch(launches))
        tx.look_at(LOOK, self.lease_seconds)

    def _launch_of(self, tx: Transaction, backfill: RowMapping, row: RowMapping, **more: Any) -> Launch:
        return Launch(
            **{
                "backfill_id": backfill["id"],
                "run_id": row["id"],
                "attempt": row["attempt"],
                "pipeline": self.definitions.of(tx.conn, backfill["id"]),
                "interval_start": row["interval_start"],
                "interval_end": row["interval_end"],
                "conf": backfill["conf"],
                "trace": backfill["traceparent"],
                **more,
            }
        )

    def _launch(self, launches: list[Launch]) -> None:
        metrics.RUNS_CLAIMED.inc(len(launches))
        crash_point("claim:committed")
        self._hand_over(launches)

    def _hand_over(self, launches: list[Launch]) -> None:
        for each in launches:
            self.executor.launch(each)
        crash_point("claim:launched")
        self.launched()


def _cancel(tx: Transaction, row: RowMapping) -> None:
    """Cancel queued runs, a chunk a look so that other backfills go on; ask the drivers of live ones to end."""
    store.notify(tx.conn, store.RUN_CHANNEL, store.mark_cancel_requested(tx.conn, row["id"]))
    queued = store.next_queued(tx.conn, row["id"], CANCEL_CHUNK)
    now = database_now(tx.conn)
    given = [{"id": each["id"], "attempt": each["attempt"]} for each in queued]
    if store.move(tx.conn, RunState.CANCELLED, given, {"finished_at": now}, frm=[RunState.QUEUED]) != len(given):
        raise Conflict("a queued run was taken by somebody else")
    for each in queued:
        tx.emit(Topic.RUN_EVENTS, row["id"], RunCancelled(**facts(each, row["pipeline"], now)))
    resolve_deadlines(tx, [each["id"] for each in queued])
    if len(queued) == CANCEL_CHUNK:
        tx.look_at(f"b:{row['id']}")
