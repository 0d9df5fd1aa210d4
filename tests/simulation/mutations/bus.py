"""Mutations of the worker loop, the offsets and the relay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

import run_starter.handler
from backfill_planner.handler import PlannerHandler
from retrofill_core.bus import transaction
from retrofill_core.bus.faults import Fault, classify
from retrofill_core.bus.relay import relay
from retrofill_core.bus.relay.cursor import Marks
from retrofill_core.bus.relay.numbering import BATCH_BYTES, Batch, Last, Numbering
from retrofill_core.bus.relay.relay import Relay
from retrofill_core.bus.worker import batches, context, loop
from retrofill_core.bus.worker.batches import Batches
from retrofill_core.store import backfills, outbox
from retrofill_core.store.tables import SERVICE_TABLES
from run_starter.claims.checks import Claims
from tests.simulation.mutations.patch import Patch


def no_epoch_assertion(patch: Patch) -> None:
    """A shard transaction does not assert the owner's epoch."""
    patch(transaction, "assert_epoch", lambda conn, service, partition, epoch: None)


def no_offset_comparison(patch: Patch) -> None:
    """Offsets are set without comparing them or asserting an epoch."""

    def move(conn: Any, service: Any, partition: int, moves: Mapping[str, Any]) -> None:
        table = SERVICE_TABLES[service.package].offset
        for each in moves.values():
            where = (table.c.partition == partition) & (table.c.topic == each.topic)
            conn.execute(update(table).where(where).values(next_offset=each.new))

    patch(batches, "move_offsets", move)
    patch(transaction, "assert_epoch", lambda conn, service, partition, epoch: None)


def messages_before_commit(patch: Patch) -> None:
    """Offsets advance in their own transaction, before the effect."""
    apply = Batches._apply

    def early(self: Any, shard: Any, work: Any) -> None:
        with self._context.transaction(shard) as tx:
            transaction.move_offsets(tx.conn, self._context.service, shard.partition, work.moves)
        moves = {topic: replace(move, old=move.new) for topic, move in work.moves.items()}
        if work.records:
            apply(self, shard, replace(work, moves=moves))

    patch(Batches, "_apply", early)


def transactions_of_each_instance(patch: Patch) -> None:
    """Each relay has its own transactional id, so Kafka does not fence its predecessor."""
    # The simulation's own.
    producer = vars(relay)["producer"]

    def own(settings: Any, client_id: str, **more: Any) -> Any:
        return producer(settings, client_id, **{**more, "transactional.id": client_id})

    patch(relay, "producer", own)


def batches_without_epoch(patch: Patch) -> None:
    """The relay numbers batches without asserting its epoch.

    Random schedules rarely pause it at the right step; the relay interleavings find this mutation.
    """

    def state(self: Any, conn: Any) -> Any:
        own = self._own.relay
        return Last(*conn.execute(select(own.c.batch, own.c.batch_ids).with_for_update(key_share=True)).one())

    def number(self: Any, conn: Any, last: Last) -> Batch | None:
        own = self._own.relay
        rows = self._rows(conn, outbox.take(conn, self._own, self._limit, BATCH_BYTES, self._holds.waiting()))
        if not rows and not last.ids:
            return None
        new = last.batch + 1 if rows else last.batch
        conn.execute(update(own).values(batch=new, batch_ids=[row.id for row in rows]))
        return Batch(new, rows) if rows else None

    patch(Numbering, "_assert_epoch", state)
    patch(Numbering, "_number", number)


def unknown_batch_is_dropped(patch: Patch) -> None:
    """The relay assumes that every numbered batch was published."""
    recover = Numbering.recover

    def recovered(self: Any, cursor: int) -> Batch | None:
        with self._engine.begin() as conn:
            cursor = self._assert_epoch(conn).batch
        return recover(self, cursor)

    patch(Numbering, "recover", recovered)


def unknown_batch_is_resent(patch: Patch) -> None:
    """The relay resends the last batch without checking whether it was published."""
    patch(Relay, "_read_cursor", lambda self: Marks(0, 0))


def no_looks_at_takeover(patch: Patch) -> None:
    """A new owner runs no checks of its own after a takeover."""
    patch(PlannerHandler, "taken", lambda self, conn, partition: {})


def poison_waits(patch: Patch) -> None:
    """A message that cannot be handled is retried until it can be."""
    for module in (batches, loop):
        patch(module, "classify", lambda e: Fault.WAIT if classify(e) is Fault.POISON else classify(e))


def poison_takes_its_batch_along(patch: Patch) -> None:
    """A message that cannot be handled causes its whole batch to be dead-lettered."""

    def refused(self: Any, shard: Any, records: Any, error: Exception) -> None:
        if classify(error) is Fault.POISON:
            for record in records:
                self._set_aside(shard, record, "poison in the batch")
        else:
            before(self, shard, records, error)

    before = Batches._refused
    patch(Batches, "_refused", refused)


def locked_rows_are_forgotten(patch: Patch) -> None:
    """A backfill that another session has locked is never checked again."""
    patch(Claims, "_recheck_locked", lambda self, tx, locked: None)
    patch(run_starter.handler, "EVERY_SECONDS", 1_000_000.0)


def looks_wait_for_locks(patch: Patch) -> None:
    """A check waits for a backfill that another session has locked."""
    patch(backfills, "_LOCK_FREE", backfills._LOCK_FREE.with_for_update(key_share=True))


def events_outside_the_transaction(patch: Patch) -> None:
    """Events are inserted into the outbox after the facts have committed."""

    def insert_later(conn: Any, own: Any, rows: Any) -> None:
        if rows:
            later.append((own, list(rows)))

    later: list[Any] = []
    insert_rows, begin = outbox.insert_rows, vars(context)["shard_transaction"]  # the simulation's own

    @contextmanager
    def in_two(engine: Any, *args: Any) -> Iterator[Any]:
        with begin(engine, *args) as tx:
            yield tx
        mine, later[:] = list(later), []
        for own, rows in mine:
            with engine.begin() as conn:
                insert_rows(conn, own, rows)

    patch(outbox, "insert_rows", insert_later)
    patch(context, "shard_transaction", in_two)
