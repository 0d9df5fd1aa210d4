"""Checks of backfills and pipelines: start runs while slots are free, or cancel queued ones.

Decided from the rows alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import RowMapping

from retrofill.bus.crash import crash_point
from retrofill.bus.faults import Conflict
from retrofill.bus.handler import RECHECK_SECONDS
from retrofill.bus.observability import metrics
from retrofill.bus.transaction import Transaction
from retrofill.domain.backfill import BackfillState
from retrofill.domain.run import RunState
from retrofill.store import backfills, runs, task_runs
from retrofill.store import claims as store
from retrofill.store.clock import database_now
from retrofill.store.transition import Plus
from run_starter.cancelling import cancel
from run_starter.endings import emit_publishing, facts
from run_starter.executors import LaunchRequest
from run_starter.launching import Launching
from run_starter.leases import LEASES_KEY, Leases
from run_starter.memory import Memory, backfill_key, pipeline_key, pipelines_in, slot_freed
from run_starter.sharing import YIELD_SECONDS, Candidate, Pipeline, Shares, share

POLL_SECONDS = 5.0
# Claimants read beyond the free slots, because the first ones' rows may be locked.
SPARE = 8
# At most this many waiting keys are checked when a driver becomes free.
STARVING_AT_ONCE = 50


@dataclass(frozen=True)
class Wanted:
    """A run to start, in a slot of its backfill and one of its pipeline."""

    backfill: RowMapping
    run: RowMapping
    slot: int
    pipeline_slot: int


@dataclass
class Claims:
    """Starts, cancels and publishes the runs of an instance's shards."""

    launching: Launching
    leases: Leases
    instance: str
    memory: dict[int, Memory] = field(default_factory=dict)
    # By pipeline: the fewest live runs of a backfill that could use a slot, as of the last check.
    fewest: dict[int, int] = field(default_factory=dict)

    def of(self, partition: int) -> Memory:
        return self.memory.setdefault(partition, Memory())

    def forget(self, partition: int) -> None:
        """Drop the memory of a shard that was lost."""
        self.memory.pop(partition, None)

    def rank(self, key: str) -> int:
        """The fewest live runs of a backfill that a check of ``key`` covers; 0 if unknown."""
        return next((self.fewest.get(no, 0) for no in pipelines_in([key])), 0)

    def starving(self, partition: int) -> list[str]:
        """Keys that get the next driver: fewest live runs first, then the longest wait."""
        return sorted(self.of(partition).starving, key=self.rank)[:STARVING_AT_ONCE]

    def check(self, tx: Transaction, ids: Sequence[str], numbers: Sequence[int] = ()) -> None:
        """Check backfills by id and pipelines by number; locked rows are checked again soon.

        The number of statements depends neither on their number nor on how many backfills wait.
        """
        memory = self.of(tx.partition)
        for key in (*map(backfill_key, ids), *map(pipeline_key, numbers)):
            memory.starving.pop(key, None)
        rows = backfills.lock_free(tx.conn, ids) if ids else {}
        self._recheck_locked(tx, [id for id in ids if id not in rows])
        free = self.launching.executor.free() - self._adopt(tx, memory, rows)
        running = dict.fromkeys(numbers)
        for row in rows.values():
            match row["state"]:
                case BackfillState.RUNNING:
                    running[row["pipeline_no"]] = None
                case BackfillState.CANCELLING:
                    cancel(tx, row)
                case _:
                    pass
        memory.pipelines |= running.keys()
        if running and free <= 0:
            self._starve(memory, running)
        elif running:
            free -= self._start(tx, memory, list(running), rows, free)
        if free > 0 and memory.starving:
            # The free driver was not needed for these keys: offer it to the others.
            for key in self.starving(tx.partition):
                tx.schedule_check(key)

    def _recheck_locked(self, tx: Transaction, locked: Sequence[str]) -> None:
        """Check locked backfills again soon, unless they have ended."""
        if not locked:
            return
        metrics.CLAIMS_PUT_OFF.labels("backfill_locked").inc(len(locked))
        for id in backfills.still_active(tx.conn, locked):
            tx.schedule_check(backfill_key(id), RECHECK_SECONDS)

    def _starve(self, memory: Memory, numbers: Mapping[int, None] | Sequence[int]) -> None:
        metrics.CLAIMS_PUT_OFF.labels("no_driver").inc(len(numbers))
        memory.starve(pipeline_key(no) for no in numbers)

    def _adopt(self, tx: Transaction, memory: Memory, backfills_by_id: Mapping[str, RowMapping]) -> int:
        """Give accepted attempts whose publisher was lost to our drivers; returns how many."""
        waiting = runs.orphans(tx.conn, list(backfills_by_id)) if backfills_by_id else {}
        if not waiting:
            return 0
        # They still hold their slots and need only a driver.
        definitions = self.launching.definitions.of(tx.conn, set(waiting.values()))
        readable = [id for id, backfill in waiting.items() if backfill in definitions]
        free = max(0, self.launching.executor.free())
        chosen = readable[:free]
        memory.starve(backfill_key(waiting[id]) for id in readable[free:])
        now = database_now(tx.conn)
        lease = self.launching.lease_seconds
        rows = runs.adopt(tx.conn, chosen, self.instance, now + timedelta(seconds=lease), lease) if chosen else []
        launches = []
        for row in rows:
            outputs = tuple(row["outputs"]["folders"])
            backfill = backfills_by_id[row["backfill_id"]]
            publication = row["publication"]
            launch = self.launching.launch_of(
                backfill, row, definitions[backfill["id"]], publication=publication, outputs=outputs
            )
            emit_publishing(tx, facts(row, launch.pipeline.name, now), outputs, launch.publication)
            launches.append(launch)
        if launches:
            self.leases.renewed(tx.partition, chosen)
            tx.after_commit.append(lambda: self.launching.hand_over(launches))
            tx.schedule_check(LEASES_KEY, lease)
        return len(launches)

    def _start(
        self, tx: Transaction, memory: Memory, numbers: Sequence[int], locked: Mapping[str, RowMapping], free: int
    ) -> int:
        """Start runs in the free slots of these pipelines; returns how many."""
        limits = store.lock_pipelines(tx.conn, numbers)
        for no in set(numbers) - limits.keys():
            metrics.CLAIMS_PUT_OFF.labels("pipeline_locked").inc()
            tx.schedule_check(pipeline_key(no), RECHECK_SECONDS)
        taken = store.taken_slots(tx.conn, limits) if limits else {}
        free_slots = {no: limits[no] - len(taken[no].pipeline_slots) for no in limits}
        self._poll(tx, [no for no in free_slots if free_slots[no] <= 0])
        to_read = {no: min(free_slots[no], free) + SPARE for no in free_slots if free_slots[no] > 0}
        if not to_read:
            return 0
        with_live_runs = {id: slots for no in to_read for id, slots in taken[no].of_backfills.items()}
        found = store.claimants(tx.conn, tx.partition, to_read, with_live_runs)
        rows = self._mine(tx, found, locked)
        candidates = [
            Candidate(id, row["pipeline_no"], row["max_active_runs"], frozenset(with_live_runs.get(id, ())))
            for id, row in rows.items()
        ]
        rivals: dict[int, list[int]] = {}
        for each in found.values():
            live = len(with_live_runs.get(each.id, ()))
            if each.shard != tx.partition and live < each.max_active_runs:
                rivals.setdefault(each.pipeline_no, []).append(live)
        now = time.monotonic()
        pipelines = {
            no: Pipeline(
                limits[no],
                frozenset(taken[no].pipeline_slots),
                tuple(rivals.get(no, ())),
                now - memory.yielding_since.get(no, now),
            )
            for no in to_read
        }
        shares = share(candidates, pipelines, free)
        self._remember(tx, memory, candidates, pipelines, shares)
        return self._claim(tx, rows, shares)

    def _mine(
        self, tx: Transaction, found: Mapping[str, store.Claimant], locked: Mapping[str, RowMapping]
    ) -> dict[str, RowMapping]:
        """The running claimants of this shard, locked, in the order of their requests."""
        mine = [each for each in found.values() if each.shard == tx.partition]
        missing = [each.id for each in mine if each.id not in locked]
        rows = {**locked, **(backfills.lock_free(tx.conn, missing) if missing else {})}
        for each in mine:
            if each.id not in rows:
                metrics.CLAIMS_PUT_OFF.labels("backfill_locked").inc()
                tx.schedule_check(pipeline_key(each.pipeline_no), RECHECK_SECONDS)
        readable = self.launching.definitions.of(tx.conn, [each.id for each in mine if each.id in rows])
        ordered = sorted(mine, key=lambda each: (each.requested_at, each.id))
        # A claimant was read before it was locked, so it may have been paused since.
        return {
            each.id: rows[each.id]
            for each in ordered
            if each.id in readable and rows[each.id]["state"] == BackfillState.RUNNING
        }

    def _remember(
        self,
        tx: Transaction,
        memory: Memory,
        candidates: Sequence[Candidate],
        pipelines: Mapping[int, Pipeline],
        shares: Shares,
    ) -> None:
        """Schedule checks for pipelines and backfills that got fewer slots than they could use."""
        if shares.short_of_drivers:
            self._starve(memory, sorted(shares.short_of_drivers))
        now = time.monotonic()
        for no in pipelines:
            if no not in shares.left:
                memory.yielding_since.pop(no, None)
                continue
            metrics.CLAIMS_PUT_OFF.labels("left_to_others").inc()
            if no not in memory.yielding_since:
                tx.notify(runs.SLOT_CHANNEL, [slot_freed(no, tx.partition)])
            since = memory.yielding_since.setdefault(no, now)
            tx.schedule_check(pipeline_key(no), max(RECHECK_SECONDS, since + YIELD_SECONDS - now))
        for no in pipelines:
            self.fewest.pop(no, None)
        for each in candidates:
            live = len(each.slots) + len(shares.slots.get(each.id, ()))
            self.fewest[each.pipeline_no] = min(live, self.fewest.get(each.pipeline_no, live))
        waiting = {each.pipeline_no for each in candidates if not each.slots and each.id not in shares.slots}
        self._poll(tx, waiting - shares.left - shares.short_of_drivers)

    def _poll(self, tx: Transaction, full: Sequence[int] | set[int]) -> None:
        """Poll full pipelines, in case the notification of a free slot is lost."""
        for no in full:
            metrics.CLAIMS_PUT_OFF.labels("limit").inc()
            tx.schedule_check(pipeline_key(no), POLL_SECONDS)

    def _claim(self, tx: Transaction, rows: Mapping[str, RowMapping], shares: Shares) -> int:
        """Start one queued run per slot; returns how many."""
        if not shares.slots:
            return 0
        queued = store.next_queued(tx.conn, {id: len(slots) for id, slots in shares.slots.items()})
        wanted = [
            Wanted(rows[id], next_run, *pair)
            for id, slots in shares.slots.items()
            for next_run, pair in zip(queued.get(id, ()), slots, strict=False)
        ]
        for id, slots in shares.slots.items():
            if len(queued.get(id, ())) < len(slots):
                # It had fewer queued runs than slots: another backfill may use the rest.
                tx.schedule_check(pipeline_key(rows[id]["pipeline_no"]))
        self._write(tx, wanted)
        return len(wanted)

    def _write(self, tx: Transaction, wanted: Sequence[Wanted]) -> None:
        now = database_now(tx.conn)
        lease = self.launching.lease_seconds
        definitions = self.launching.definitions_now(tx, [each.backfill for each in wanted])
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
            "attempt": Plus(1),
            "lease_until": now + timedelta(seconds=lease),
            "lease_seconds": lease,
            "host": self.instance,
        }
        if runs.move(tx.conn, RunState.STARTING, given, values, from_states=[RunState.QUEUED]) != len(given):
            raise Conflict("a queued run was changed by another transaction")
        crash_point("claim:written")
        launches = [
            self.launching.launch_of(
                each.backfill, each.run, definitions[each.backfill["id"]], attempt=each.run["attempt"] + 1
            )
            for each in wanted
        ]
        task_runs.create(
            tx.conn, [(each.run_id, each.attempt, task.name) for each in launches for task in each.pipeline.tasks]
        )
        self.leases.renewed(tx.partition, [each.run_id for each in launches])
        tx.after_commit.append(lambda: self._launch(launches))
        tx.schedule_check(LEASES_KEY, lease)

    def _launch(self, launches: Sequence[LaunchRequest]) -> None:
        metrics.RUNS_CLAIMED.inc(len(launches))
        crash_point("claim:committed")
        self.launching.hand_over(launches)
