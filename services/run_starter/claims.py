"""Looks at a backfill: start runs where there is room, or cancel what has not started. Decided from the rows alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.domain.run import RunState
from retrofill.messages.runs import RunCancelled
from retrofill.store import backfills, pipelines
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


@dataclass(frozen=True)
class Wanted:
    """A run to be started, in a slot of its backfill and one of its pipeline."""

    backfill: RowMapping
    run: RowMapping
    slot: int
    pipeline_slot: int


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

    def look(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Look at backfills, those that matter most first, without waiting for anybody's lock.

        As many statements for many as for one. Locks: the backfills by id, then their pipelines by number, then runs.
        """
        self.starving.difference_update(ids)
        rows = backfills.lock_free(tx.conn, ids)
        self._put_off(tx, [id for id in ids if id not in rows])
        adopted = self._adopt(tx, rows)
        running = []
        for row in (rows[id] for id in ids if id in rows):
            self.pipeline_of[row["id"]] = row["pipeline_no"]
            match row["state"]:
                case BackfillState.RUNNING:
                    running.append(row)
                case BackfillState.CANCELLING:
                    _cancel(tx, row)
                case BackfillState.PAUSED:
                    pass
                case _:
                    self.forget(row["id"])
        self._start(tx, self._claimable(tx, running), self.executor.free() - adopted)

    def _put_off(self, tx: Transaction, locked: Sequence[str]) -> None:
        """Somebody else has these rows; those of them that are not over are looked at again soon."""
        if not locked:
            return
        metrics.CLAIMS_PUT_OFF.labels("backfill_locked").inc(len(locked))
        for id in backfills.still_active(tx.conn, locked):
            tx.look_at(f"b:{id}", AGAIN_SECONDS)

    def _claimable(self, tx: Transaction, rows: Sequence[RowMapping]) -> list[RowMapping]:
        """Those that no failed run holds back; of each pipeline one, as the others need what that one leaves."""
        stopping = [row["id"] for row in rows if row["on_run_failure"] != OnRunFailure.CONTINUE]
        held = backfills.failed_since_resume(tx.conn, stopping) if stopping else set()
        first: dict[int, RowMapping] = {}
        for row in rows:
            if row["id"] not in held and first.setdefault(row["pipeline_no"], row) is not row:
                tx.look_at(f"b:{row['id']}")
        return list(first.values())

    def _adopt(self, tx: Transaction, backfills_by_id: Mapping[str, RowMapping]) -> int:
        """Publish what accepted attempts staged whose publisher was lost; how many were given to our drivers."""
        waiting = store.orphans(tx.conn, list(backfills_by_id))
        if not waiting:
            return 0
        # They have their slots already: it takes nothing but a driver.
        free = self.executor.free()
        now = database_now(tx.conn)
        until = now + timedelta(seconds=self.lease_seconds)
        rows = store.adopt(tx.conn, list(waiting)[:free], self.instance, until) if free > 0 else []
        if len(rows) < len(waiting):
            self.starving.update(waiting.values())
        launches = []
        for row in rows:
            outputs = tuple(row["outputs"]["folders"])
            backfill = backfills_by_id[row["backfill_id"]]
            launch = self._launch_of(tx, backfill, row, publication=row["publication"], outputs=outputs)
            tell_publishing(tx, facts(row, launch.pipeline.name, now), outputs, launch.publication)
            launches.append(launch)
        if launches:
            tx.after_commit.append(lambda: self._hand_over(launches))
            tx.look_at(LOOK, self.lease_seconds)
        return len(launches)

    def _start(self, tx: Transaction, rows: Sequence[RowMapping], free: int) -> None:
        """Start what there is room for: of each of these backfills, each of another pipeline."""
        if not rows:
            return
        if free <= 0:
            self._wait_for_driver(rows)
            return
        limits = store.lock_pipelines(tx.conn, [row["pipeline_no"] for row in rows])
        for row in rows:
            if row["pipeline_no"] not in limits:
                metrics.CLAIMS_PUT_OFF.labels("pipeline_locked").inc()
                tx.look_at(f"b:{row['id']}", AGAIN_SECONDS)
        rows = [row for row in rows if row["pipeline_no"] in limits]
        queued = store.next_queued(tx.conn, {row["id"]: min(free, row["max_active_runs"]) for row in rows})
        # One without a run to start must not be given a driver that another one waits for.
        rows = [row for row in rows if row["id"] in queued]
        rooms = store.rooms(tx.conn, {row["id"]: row["pipeline_no"] for row in rows}, limits)
        wanted: list[Wanted] = []
        for n, row in enumerate(rows):
            if free <= 0:
                self._wait_for_driver(rows[n:])
                break
            slots = self._decide(tx, row, rooms[row["id"]], free)
            given = [Wanted(row, next_run, *pair) for next_run, pair in zip(queued[row["id"]], slots, strict=False)]
            free -= len(given)
            wanted += given
        self._claim(tx, wanted)

    def _wait_for_driver(self, rows: Sequence[RowMapping]) -> None:
        metrics.CLAIMS_PUT_OFF.labels("no_driver").inc(len(rows))
        self.starving.update(row["id"] for row in rows)

    def _decide(self, tx: Transaction, row: RowMapping, room: store.Room, free: int) -> tuple[tuple[int, int], ...]:
        """The slots to start runs of one backfill in, and when to look at it again."""
        id = row["id"]
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
            tx.notify(store.SLOT_CHANNEL, [row["pipeline_no"]])
        else:
            self.yielding_since.pop(id, None)
        return decision.slots

    def _claim(self, tx: Transaction, wanted: Sequence[Wanted]) -> None:
        if not wanted:
            return
        now = database_now(tx.conn)
        definitions = self._definitions_now(tx, [each.backfill for each in wanted])
        given = [
            {
                "id": each.run["id"],
                "attempt": each.run["attempt"],
                "slot": each.slot,
                "pipeline_slot": each.pipeline_slot,
                "code_sha256": definitions[each.backfill["id"]].code.sha256,
            }
            for each in wanted
        ]
        values = {
            "attempt": run.c.attempt + 1,
            "lease_until": now + timedelta(seconds=self.lease_seconds),
            "host": self.instance,
        }
        if store.move(tx.conn, RunState.STARTING, given, values, frm=[RunState.QUEUED]) != len(given):
            raise Conflict("a queued run was taken by somebody else")
        crash_point("claim:written")
        launches = [
            self._launch_of(
                tx,
                each.backfill,
                each.run,
                attempt=each.run["attempt"] + 1,
                pipeline=definitions[each.backfill["id"]],
            )
            for each in wanted
        ]
        store.insert_task_runs(
            tx.conn, [(each.run_id, each.attempt, task.name) for each in launches for task in each.pipeline.tasks]
        )
        tx.after_commit.append(lambda: self._launch(launches))
        tx.look_at(LOOK, self.lease_seconds)

    def _definitions_now(self, tx: Transaction, rows: Sequence[RowMapping]) -> dict[str, PipelineDefinition]:
        """What runs of these backfills that start now are made of: as planned, but with the latest code where they follow it.

        Their pipelines are locked by the caller, so that nothing is applied meanwhile.
        """
        planned = {row["id"]: self.definitions.of(tx.conn, row["id"]) for row in rows}
        following = {row["id"]: row["pipeline_no"] for row in rows if row["code_follows"]}
        if not following:
            return planned
        latest = pipelines.codes(tx.conn, set(following.values()))
        return planned | {
            id: planned[id].model_copy(update={"code": latest[no]}) for id, no in following.items() if no in latest
        }

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
    tx.notify(store.RUN_CHANNEL, store.mark_cancel_requested(tx.conn, row["id"]))
    queued = store.next_queued(tx.conn, {row["id"]: CANCEL_CHUNK}).get(row["id"], [])
    now = database_now(tx.conn)
    given = [{"id": each["id"], "attempt": each["attempt"]} for each in queued]
    if store.move(tx.conn, RunState.CANCELLED, given, {"finished_at": now}, frm=[RunState.QUEUED]) != len(given):
        raise Conflict("a queued run was taken by somebody else")
    for each in queued:
        tx.emit(Topic.RUN_EVENTS, row["id"], RunCancelled(**facts(each, row["pipeline"], now)))
    resolve_deadlines(tx, [each["id"] for each in queued])
    if len(queued) == CANCEL_CHUNK:
        tx.look_at(f"b:{row['id']}")
