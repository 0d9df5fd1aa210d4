"""Checks of backfills and pipelines: start attempts while slots are free, or cancel queued runs.

Decided from the rows alone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import RowMapping

from retrofill.bus.handler import RECHECK_SECONDS
from retrofill.bus.observability import metrics
from retrofill.bus.transaction import Transaction
from retrofill.domain.attempt import AttemptMode
from retrofill.domain.backfill import BackfillState
from retrofill.store import backfills, runs
from retrofill.store import claims as store
from run_starter.batches import batch_limit, batches, how_many, mode_of
from run_starter.cancelling import cancel, cancel_runs
from run_starter.memory import Memory, backfill_key, pipeline_key, pipelines_in, slot_freed
from run_starter.sharing import YIELD_SECONDS, Candidate, Pipeline, Shares, free_slots, share
from run_starter.sizes import batch_sizes
from run_starter.starting import Starting, Wanted
from run_starter.suspects import next_attempts, server_of

POLL_SECONDS = 5.0
# Claimants read beyond the free slots, because the first ones' rows may be locked.
SPARE = 8
# At most this many waiting keys are checked when a driver becomes free.
STARVING_AT_ONCE = 50


@dataclass
class Claims:
    """Starts, cancels and publishes the runs of an instance's shards.

    ``drivers``: how many this instance has.
    """

    starting: Starting
    drivers: int
    memory: dict[int, Memory] = field(default_factory=dict)
    # By pipeline: the fewest live attempts of a backfill that could use a slot, as of the last check.
    fewest: dict[int, int] = field(default_factory=dict)

    def of(self, partition: int) -> Memory:
        return self.memory.setdefault(partition, Memory())

    def forget(self, partition: int) -> None:
        """Drop the memory of a shard that was lost."""
        self.memory.pop(partition, None)

    def rank(self, key: str) -> int:
        """The fewest live attempts of a backfill that a check of ``key`` covers; 0 if unknown."""
        return next((self.fewest.get(no, 0) for no in pipelines_in([key])), 0)

    def starving(self, partition: int) -> list[str]:
        """Keys that get the next driver: fewest live attempts first, then the longest wait."""
        return sorted(self.of(partition).starving, key=self.rank)[:STARVING_AT_ONCE]

    def check(self, tx: Transaction, ids: Sequence[str], numbers: Sequence[int] = ()) -> None:
        """Check backfills by id and pipelines by number; locked rows are checked again soon.

        The number of statements depends neither on their number nor on how many backfills wait.
        """
        memory = self.of(tx.partition)
        for key in (*map(backfill_key, ids), *map(pipeline_key, numbers)):
            memory.starving.pop(key, None)
        ids = [*dict.fromkeys([*ids, *memory.unpublished(numbers)])]
        rows = self._locked(tx, ids)
        self._recheck_locked(tx, [id for id in ids if id not in rows])
        staged = store.staged(tx.conn, rows) if rows else {}
        memory.publish_later({id: rows[id]["pipeline_no"] for id in staged}, checked=ids)
        running = dict.fromkeys([*numbers, *(rows[id]["pipeline_no"] for id in staged)])
        for row in rows.values():
            match row["state"]:
                case BackfillState.RUNNING:
                    running[row["pipeline_no"]] = None
                case BackfillState.CANCELLING:
                    cancel(tx, row)
                case _:
                    pass
        memory.pipelines |= running.keys()
        free = self.starting.launching.executor.free()
        if running and free <= 0:
            self._starve(memory, running)
        elif running:
            free -= self._start(tx, memory, list(running), rows, staged, free)
        if free > 0 and memory.starving:
            # The free driver was not needed for these keys: offer it to the others.
            for key in self.starving(tx.partition):
                tx.schedule_check(key)

    def _locked(self, tx: Transaction, ids: Sequence[str]) -> dict[str, RowMapping]:
        """Those of these backfills that nobody else has locked, without queued runs to be cancelled."""
        rows = backfills.lock_free(tx.conn, ids) if ids else {}
        cancel_runs(tx, {id: row for id, row in rows.items() if row["has_run_cancels"]})
        return rows

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

    def _start(
        self,
        tx: Transaction,
        memory: Memory,
        numbers: Sequence[int],
        locked: Mapping[str, RowMapping],
        staged: Mapping[str, Sequence[RowMapping]],
        free: int,
    ) -> int:
        """Start attempts in the free slots of these pipelines, publishers first; returns how many.

        ``locked``: backfills by id; ``staged``: their accepted runs without a publisher.
        """
        limits = store.lock_pipelines(tx.conn, numbers)
        for no in set(numbers) - limits.keys():
            metrics.CLAIMS_PUT_OFF.labels("pipeline_locked").inc()
            tx.schedule_check(pipeline_key(no), RECHECK_SECONDS)
        taken = store.taken_slots(tx.conn, limits) if limits else {}
        wanted = self._publishers(tx, locked, staged, limits, taken, free)
        free -= len(wanted)
        free_slots = {no: limits[no] - len(taken[no].pipeline_slots) for no in limits}
        self._poll(tx, [no for no in free_slots if free_slots[no] <= 0])
        to_read = {no: min(free_slots[no], free) + SPARE for no in free_slots if free_slots[no] > 0}
        if to_read and free > 0:
            wanted += self._next_runs(tx, memory, to_read, locked, limits, taken, free)
        elif to_read:
            self._starve(memory, list(to_read))
        self.starting.start(tx, wanted)
        return len(wanted)

    def _publishers(
        self,
        tx: Transaction,
        locked: Mapping[str, RowMapping],
        staged: Mapping[str, Sequence[RowMapping]],
        limits: Mapping[int, int],
        taken: Mapping[int, store.Taken],
        free: int,
    ) -> list[Wanted]:
        """An attempt for each accepted run without a publisher; takes their slots."""
        wanted: list[Wanted] = []
        readable = self.starting.launching.definitions.of(tx.conn, list(staged)) if staged else {}
        for id in readable:
            row, no = locked[id], locked[id]["pipeline_no"]
            if no not in limits:
                continue
            own, shared = taken[no].of_backfills.setdefault(id, set()), taken[no].pipeline_slots
            pairs = zip(
                free_slots(frozenset(own), row["max_active_runs"]),
                free_slots(frozenset(shared), limits[no]),
                strict=False,
            )
            for each, (slot, pipeline_slot) in zip(staged[id][: free - len(wanted)], list(pairs), strict=False):
                wanted.append(Wanted(row, AttemptMode.PUBLISH, [each], slot, pipeline_slot))
                own.add(slot)
                shared.add(pipeline_slot)
        return wanted

    def _next_runs(
        self,
        tx: Transaction,
        memory: Memory,
        to_read: Mapping[int, int],
        locked: Mapping[str, RowMapping],
        limits: Mapping[int, int],
        taken: Mapping[int, store.Taken],
        free: int,
    ) -> list[Wanted]:
        """The attempts that execute the next runs."""
        with_live_attempts = {id: slots for no in to_read for id, slots in taken[no].of_backfills.items()}
        found = store.claimants(tx.conn, tx.partition, to_read, with_live_attempts, self.starting.server)
        rows = self._mine(tx, found, locked)
        candidates = [
            Candidate(id, row["pipeline_no"], row["max_active_runs"], frozenset(with_live_attempts.get(id, ())))
            for id, row in rows.items()
        ]
        rivals: dict[int, list[int]] = {}
        for each in found.values():
            live = len(with_live_attempts.get(each.id, ()))
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
        return self._chosen(tx, rows, shares, limits, {id for id in shares.slots if found[id].suspects})

    def _mine(
        self, tx: Transaction, found: Mapping[str, store.Claimant], locked: Mapping[str, RowMapping]
    ) -> dict[str, RowMapping]:
        """The running claimants of this shard, locked, in the order of their requests."""
        mine = [each for each in found.values() if each.shard == tx.partition]
        missing = [each.id for each in mine if each.id not in locked]
        rows = {**locked, **self._locked(tx, missing)}
        for each in mine:
            if each.id not in rows:
                metrics.CLAIMS_PUT_OFF.labels("backfill_locked").inc()
                tx.schedule_check(pipeline_key(each.pipeline_no), RECHECK_SECONDS)
        readable = self.starting.launching.definitions.of(tx.conn, [each.id for each in mine if each.id in rows])
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

    def _chosen(
        self,
        tx: Transaction,
        rows: Mapping[str, RowMapping],
        shares: Shares,
        limits: Mapping[int, int],
        with_suspects: Collection[str],
    ) -> list[Wanted]:
        """The next queued runs, in one batch for each slot. Suspects go first."""
        if not shares.slots:
            return []
        server = self.starting.server
        definitions = self.starting.launching.definitions.of(tx.conn, list(shares.slots))
        sizes = batch_sizes(tx, self.starting.launching, [rows[id] for id in shares.slots])
        alone = next_attempts(tx, {id: len(shares.slots[id]) for id in with_suspects}, definitions, server)
        asked = {id: sizes[id] * len(slots) for id, slots in shares.slots.items()}
        queued = store.next_queued(tx.conn, asked)
        wanted: list[Wanted] = []
        for id, slots in shares.slots.items():
            row, waiting, suspects = rows[id], queued.get(id, []), alone.get(id, [])
            parallel = min(row["max_active_runs"], limits[row["pipeline_no"]], self.drivers)
            mode = definitions[id].batch_mode
            limit = batch_limit(sizes[id], how_many(waiting, asked[id]), parallel, mode)
            formed = [*suspects, *batches(waiting, limit, len(slots) - len(suspects))]
            for batch, pair in zip(formed, slots, strict=False):
                alone_on = server_of(definitions[id], server) if batch[0]["lost_at"] is not None else None
                wanted.append(Wanted(row, mode_of(mode, batch), batch, *pair, suspect_server=alone_on))
            if len(formed) < len(slots):
                # It had fewer batches than slots: another backfill may use the rest. Its suspects
                # may have waited for another transaction.
                tx.schedule_check(pipeline_key(row["pipeline_no"]), RECHECK_SECONDS if id in with_suspects else 0.0)
        return wanted
