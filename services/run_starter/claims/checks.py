"""Checks of backfills and pipelines: start attempts while slots are free, or cancel queued runs.

Decided from the rows alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from retrofill_core.bus import metrics
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.estimate import next_size
from retrofill_core.store import backfills, hosts, progress
from retrofill_core.store import claims as store
from retrofill_core.store.giving_way import Rank
from retrofill_core.store.rows import Backfill
from run_starter.claims.batches import batch_limit, batches, how_many, mode_of, next_attempts, server_of
from run_starter.claims.cancelling import cancel, cancel_runs
from run_starter.claims.publishing import PUBLISHED_AT_ONCE, Publication, publishable, slots_left
from run_starter.claims.seating import POLL_SECONDS, leave, may_write, offered, seated, wait, writes_of
from run_starter.claims.starting import Starting, Wanted
from run_starter.host.launching import Launching
from run_starter.memory import Memory, backfill_key, backfills_in, pipeline_key, pipelines_in
from run_starter.sharing import Candidate, PipelineSlots, Rivals, Shares, share

# Claimants read beyond the free slots, because the first ones' rows may be locked.
SPARE = 8
# At most this many waiting keys are checked when a seat becomes free.
STARVING_AT_ONCE = 50


@dataclass
class Claims:
    """Starts, cancels and publishes the runs of an instance's shards.

    ``drivers``: how many all hosts of a pool have, as of the last claim; before, as many as ``expected``.
    """

    starting: Starting
    expected: int
    drivers: dict[str, int] = field(default_factory=dict)
    memory: dict[int, Memory] = field(default_factory=dict)

    def of(self, partition: int) -> Memory:
        return self.memory.setdefault(partition, Memory())

    def forget(self, partition: int) -> None:
        """Drop the memory of a shard that was lost."""
        self.memory.pop(partition, None)

    def starving(self, partition: int, pool: str = "", count: int = STARVING_AT_ONCE) -> list[str]:
        """The keys to check when there may be a seat of a pool, or of any, because an attempt has ended."""
        memory = self.of(partition)
        return [*dict.fromkeys([*memory.first(pool, count), *islice(memory.to_write, count)])]

    def check_after_ends(self, tx: Transaction, keys: Sequence[str]) -> int:
        """Check these, and who waits for a seat, in the transaction in which runs ended: it takes what they free.

        Returns how many attempts it started.
        """
        all_keys = dict.fromkeys([*keys, *self.starving(tx.partition, count=len(keys))])
        return self.check(tx, backfills_in(all_keys), pipelines_in(all_keys))

    def check(self, tx: Transaction, ids: Sequence[str], numbers: Sequence[int] = ()) -> int:
        """Check backfills by id and pipelines by number; locked rows are checked again soon.

        Returns how many attempts it started.

        The number of statements depends neither on their number nor on how many backfills wait,
        only on how many pools they are of.
        """
        memory = self.of(tx.partition)
        memory.check([*map(backfill_key, ids), *map(pipeline_key, numbers)])
        ids = [*dict.fromkeys([*ids, *memory.unpublished(numbers)])]
        rows = self._locked(tx, ids)
        self._recheck_locked(tx, [id for id in ids if id not in rows])
        staged = store.to_publish(tx.conn, {id: row.publishes_below for id, row in rows.items()})
        memory.publish_later({id: rows[id].pipeline_no for id in rows if id in staged}, checked=ids)
        running = dict.fromkeys([*numbers, *(rows[id].pipeline_no for id in rows if id in staged)])
        for row in rows.values():
            match row.state:
                case BackfillState.RUNNING:
                    running[row.pipeline_no] = None
                case BackfillState.CANCELLING:
                    cancel(tx, row)
                case _:
                    pass
        memory.pipelines |= running.keys()
        return self._start(tx, memory, list(running), rows, staged) if running else 0

    def _drivers(self) -> int:
        return sum(self.drivers.values()) or self.expected

    def _locked(self, tx: Transaction, ids: Sequence[str]) -> dict[str, Backfill]:
        """Those of these backfills that nobody else has locked, without queued runs to be cancelled."""
        rows, to_cancel = backfills.lock_free(tx.conn, ids) if ids else ({}, [])
        for id in cancel_runs(tx, {id: rows[id] for id in to_cancel}):
            del rows[id]
        return rows

    def _recheck_locked(self, tx: Transaction, locked: Sequence[str]) -> None:
        """Check locked backfills again soon, unless they have ended."""
        if not locked:
            return
        metrics.CLAIMS_PUT_OFF.labels("backfill_locked").inc(len(locked))
        for id in backfills.still_active(tx.conn, locked):
            tx.schedule_check(backfill_key(id), RECHECK_SECONDS)

    def _start(
        self,
        tx: Transaction,
        memory: Memory,
        numbers: Sequence[int],
        locked: Mapping[str, Backfill],
        staged: Collection[str],
    ) -> int:
        """Start attempts in the free slots of these pipelines, publishers first; returns how many.

        ``locked``: backfills by id; ``staged``: which of them have accepted runs without a publisher.
        """
        limits, now = store.lock_pipelines(tx.conn, numbers)
        for no in set(numbers) - limits.keys():
            metrics.CLAIMS_PUT_OFF.labels("pipeline_locked").inc()
            tx.schedule_check(pipeline_key(no), RECHECK_SECONDS)
        if now is None:
            return 0
        taken = store.taken_slots(tx.conn, limits)
        publications = self._publications(tx, [locked[id] for id in locked if id in staged], limits, taken)
        free_slots = {no: limits[no] - len(taken[no].pipeline_slots) for no in limits}
        self._poll(tx, [no for no in free_slots if free_slots[no] <= 0])
        to_read = {no: min(free, self._drivers()) + SPARE for no, free in free_slots.items() if free > 0}
        rows, candidates, pipelines = self._candidates(tx, memory, to_read, locked, limits, taken, now)
        seats, totals = offered(tx, self.starting.own(), memory, candidates, pipelines, publications, now)
        self.drivers |= totals
        locked_seats = {pool: len(each.free) for pool, each in seats.items()}
        wanted, unseated = seated(publications, seats)
        shares = share(candidates, pipelines, seats, now)
        for each in unseated:
            # Publishers go first everywhere.
            since = each.accepted.runs[0].started_at or each.backfill.requested_at
            shares.fall_short(each.pool, each.backfill.pipeline_no, Rank(-1, since), each.executor)
        self._remember(tx, memory, candidates, shares, seats)
        with_suspects = {each.id for each in candidates if each.suspects and each.id in shares.slots}
        wanted += self._chosen(tx, rows, shares, limits, with_suspects)
        self.starting.start(tx, wanted)
        used = Counter(each.seat.pool for each in wanted)
        # Claims that ran meanwhile skipped those that are left.
        left = [pool for pool, count in locked_seats.items() if count > used[pool] and pool not in shares.short]
        tx.notify(hosts.SEAT_CHANNEL, left)
        return len(wanted)

    def _publications(
        self, tx: Transaction, staged: Sequence[Backfill], limits: Mapping[int, int], taken: Mapping[int, store.Taken]
    ) -> list[Publication]:
        """What is published in the free slots, which it takes."""
        readable = self.starting.launching.definitions.of(tx.conn, [row.id for row in staged]) if staged else {}
        slots = {
            row.id: min(free, self._drivers() + SPARE)
            for row in staged
            if row.id in readable and (free := slots_left(row, limits, taken)) > 0
        }
        wanted = {row.id: (slots[row.id] * PUBLISHED_AT_ONCE, row.publishes_below) for row in staged if row.id in slots}
        live = {id for each in taken.values() for id in each.attempts}
        accepted = store.staged(tx.conn, wanted, live) if wanted else {}
        return [
            each
            for row in staged
            if row.id in accepted
            for each in publishable(row, accepted[row.id], readable[row.id], slots[row.id], limits, taken)
        ]

    def _candidates(
        self,
        tx: Transaction,
        memory: Memory,
        to_read: Mapping[int, int],
        locked: Mapping[str, Backfill],
        limits: Mapping[int, int],
        taken: Mapping[int, store.Taken],
        now: datetime,
    ) -> tuple[Mapping[str, Backfill], list[Candidate], dict[int, PipelineSlots]]:
        """The backfills with a run to start, locked, and their pipelines."""
        if not to_read:
            return {}, [], {}
        with_live_attempts = {id: slots for no in to_read for id, slots in taken[no].of_backfills.items()}
        # Also of other shards of this instance, whose backfills are rivals.
        unreadable = [id for each in self.memory.values() for id, no in each.unreadable.items() if no in to_read]
        found = store.claimants(tx.conn, tx.partition, to_read, with_live_attempts, unreadable)
        rows = self._mine(tx, memory, found, locked)
        definitions = self.starting.launching.definitions.of(tx.conn, list(rows)) if rows else {}
        candidates = [
            Candidate(
                id,
                row.pipeline_no,
                row.max_active_runs,
                frozenset(with_live_attempts.get(id, ())),
                found[id].since,
                definitions[id].executor,
                found[id].suspects,
                definitions[id].pool,
                writes_of(row, definitions[id]),
            )
            for id, row in rows.items()
        ]
        candidates = may_write(tx, memory, candidates)
        rivals: dict[int, list[Rank]] = {}
        for each in found.values():
            live = len(with_live_attempts.get(each.id, ()))
            if each.shard != tx.partition and live < each.max_active_runs:
                rivals.setdefault(each.pipeline_no, []).append(Rank(live, each.since))
        pipelines = {
            no: PipelineSlots(
                limits[no],
                frozenset(taken[no].pipeline_slots),
                Rivals.of(rivals.get(no, ()), now, memory.exhausted(no)),
            )
            for no in to_read
        }
        return rows, candidates, pipelines

    def _mine(
        self, tx: Transaction, memory: Memory, found: Mapping[str, store.Claimant], locked: Mapping[str, Backfill]
    ) -> dict[str, Backfill]:
        """The running claimants of this shard, locked, the one served longest ago first."""
        mine = [each for each in found.values() if each.shard == tx.partition]
        missing = [each.id for each in mine if each.id not in locked]
        rows = {**locked, **self._locked(tx, missing)}
        for each in mine:
            if each.id not in rows:
                metrics.CLAIMS_PUT_OFF.labels("backfill_locked").inc()
                tx.schedule_check(pipeline_key(each.pipeline_no), RECHECK_SECONDS)
        readable = self.starting.launching.definitions.of(tx.conn, [each.id for each in mine if each.id in rows])
        unreadable = {each.id: each.pipeline_no for each in mine if each.id in rows and each.id not in readable}
        for no in memory.pass_over(unreadable):
            tx.schedule_check(pipeline_key(no))
        ordered = sorted(mine, key=lambda each: (each.since, each.id))
        # A claimant was read before it was locked, so it may have been paused since.
        return {
            each.id: rows[each.id]
            for each in ordered
            if each.id in readable and rows[each.id].state == BackfillState.RUNNING
        }

    def _remember(
        self,
        tx: Transaction,
        memory: Memory,
        candidates: Sequence[Candidate],
        shares: Shares,
        pools: Collection[str],
    ) -> None:
        """Schedule checks for pipelines and backfills that got fewer slots than they could use."""
        wait(tx, memory, shares)
        leave(tx, memory, shares)
        # There may be seats for those who waited, too.
        for pool in [each for each in list(pools or memory.starving) if each not in shares.short]:
            for key in self.starving(tx.partition, pool):
                tx.schedule_check(key)
        waiting = {each.pipeline_no for each in candidates if not each.slots and each.id not in shares.slots}
        self._poll(tx, waiting.difference(shares.left, *shares.short.values()))

    def _poll(self, tx: Transaction, full: Sequence[int] | set[int]) -> None:
        """Poll full pipelines, in case the notification of a free slot is lost."""
        for no in full:
            metrics.CLAIMS_PUT_OFF.labels("limit").inc()
            tx.schedule_check(pipeline_key(no), POLL_SECONDS)

    def _chosen(
        self,
        tx: Transaction,
        rows: Mapping[str, Backfill],
        shares: Shares,
        limits: Mapping[int, int],
        with_suspects: Collection[str],
    ) -> list[Wanted]:
        """The next queued runs, in one batch for each slot. Suspects go first."""
        if not shares.slots:
            return []
        definitions = self.starting.launching.definitions.of(tx.conn, list(shares.slots))
        sizes = batch_sizes(tx, self.starting.launching, [rows[id] for id in shares.slots])
        alone = next_attempts(tx, {id: len(shares.slots[id]) for id in with_suspects}, definitions)
        asked = {id: sizes[id] * len(slots) for id, slots in shares.slots.items()}
        queued = store.next_queued(tx.conn, asked)
        wanted: list[Wanted] = []
        for id, slots in shares.slots.items():
            row, waiting, suspects = rows[id], queued.get(id, store.Waiting([], 0)), alone.get(id, [])
            writes = writes_of(row, definitions[id])
            parallel = min(
                1 if writes else row.max_active_runs,
                limits[row.pipeline_no],
                self.drivers.get(definitions[id].pool, self.expected),
            )
            mode = definitions[id].batch_mode
            limit = batch_limit(sizes[id], how_many(waiting, asked[id]), parallel, mode)
            formed = [*suspects, *batches(waiting.runs, limit, len(slots) - len(suspects))]
            for batch, pair in zip(formed, slots, strict=False):
                alone_on = server_of(definitions[id]) if batch[0].lost_at is not None else None
                wanted.append(Wanted(row, mode_of(mode, batch), batch, *pair, suspect_server=alone_on, writes=writes))
            if len(formed) < len(slots):
                # It had fewer batches than slots: another backfill may use the rest. Its suspects
                # may have waited for another transaction.
                tx.schedule_check(pipeline_key(row.pipeline_no), RECHECK_SECONDS if id in with_suspects else 0.0)
        return wanted


def batch_sizes(tx: Transaction, launching: Launching, backfills: Sequence[Backfill]) -> dict[str, int]:
    """The most runs of an attempt, by backfill. One statement more if any size is chosen here.

    The definitions of ``backfills`` are readable.
    """
    planned = launching.definitions.of(tx.conn, [row.id for row in backfills])
    sizes = {row.id: planned[row.id].in_batches_of(row.batch_size).batch_size for row in backfills}
    adapting = [row for row in backfills if planned[row.id].batch_target_seconds is not None]
    if adapting:
        # With the code of the next attempt: what another one took says nothing about it.
        definitions = launching.definitions_now(tx, adapting)
        history = progress.last_attempts(tx.conn, {row.pipeline_no for row in adapting})
        for row in adapting:
            definition = definitions[row.id].in_batches_of(row.batch_size)
            sizes[row.id] = next_size(definition, history[row.pipeline_no]).runs
    return sizes
