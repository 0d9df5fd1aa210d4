"""A shard's transaction: epoch first, then facts, offsets and outgoing events, in one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Engine, Select, Text, Update, bindparam, select, update

from retrofill import tracing
from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill.tracing import parent_of
from retrofill_core.bus.envelope import Record, dead_letter, dead_letter_of, headers_of
from retrofill_core.bus.faults import Fenced, Poison
from retrofill_core.bus.notifications import announce
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Service, Topic
from retrofill_core.store import outbox
from retrofill_core.store.engine import writes
from retrofill_core.store.outbox import Outgoing
from retrofill_core.store.sql import Arrays
from retrofill_core.store.tables import SERVICE_TABLES

log = get_log(__name__)
# The epoch of a transaction that does not act as the shard's owner.
NO_EPOCH = -1


@dataclass(frozen=True)
class Move:
    """A consumed offset to move, from the value this owner expects in Postgres to the new one."""

    topic: str
    old: int
    new: int


@dataclass
class Transaction:
    """An open transaction, as handlers use it. Do not commit or roll back ``conn``."""

    conn: Connection
    service: Service
    partition: int
    epoch: int
    max_message_bytes: int
    outgoing: list[Outgoing] = field(default_factory=list)
    after_commit: list[Callable[[], None]] = field(default_factory=list)
    checks: dict[str, float] = field(default_factory=dict)
    notifications: list[tuple[str, str]] = field(default_factory=list)

    def emit(
        self,
        topic: Topic,
        key: str | int,
        message: Message,
        *,
        reply_to: Record | None = None,
        trace: str | None = None,
        linger: bool = False,
    ) -> None:
        """Publish ``message`` after the commit. Raises ``Poison`` if it is too large.

        Its trace context is ``trace``, or that of ``reply_to``. ``linger``: nobody acts on it at
        once, so the relay may wait a moment to publish it together with others.
        """
        if reply_to is not None and reply_to.ce_id is not None:
            message = message.model_copy(update={"in_reply_to": reply_to.ce_id})
        headers = headers_of(message, self.service.name)
        if trace is None and reply_to is not None:
            trace = parent_of(reply_to.headers)
        if trace is not None:
            headers[tracing.HEADER] = trace
        self._add(topic, str(key).encode(), message.encode(), _as_bytes(headers), linger=linger)

    def republish(self, record: Record, key: str, ce_id: str) -> None:
        """Publish ``record`` again on its topic under ``key``, adding ``ce_id`` if it has none."""
        headers = record.raw_headers
        if record.ce_id is None:
            headers = (*headers, ("ce_id", ce_id.encode()))
        self._add(Topic(record.topic), key.encode(), record.value, headers)

    def dead_letter(self, record: Record, reason: str) -> None:
        """Dead-letter ``record``."""
        self.outgoing.append(dead_letter(record, reason, self.service.name))

    def dead_letter_of(self, topic: Topic, key: str | int, message: Message, reason: str) -> None:
        """Dead-letter an unpublished ``message``; a replay publishes it on ``topic``."""
        headers = _as_bytes(headers_of(message, self.service.name))
        original = Outgoing(topic, str(key).encode(), message.encode(), headers)
        self.outgoing.append(dead_letter_of(original, reason, self.service.name))

    def schedule_check(self, key: str, after: float = 0.0) -> None:
        """Check ``key`` ``after`` seconds from the commit."""
        self.checks[key] = min(after, self.checks.get(key, after))

    def run_hooks(self) -> None:
        """Run ``after_commit``. Failures are only logged: raising would suggest a failed commit."""
        for hook in self.after_commit:
            try:
                hook()
            except Exception:
                log.exception("hook_failed", service=self.service.name, shard=self.partition)

    def notify(self, channel: str, payloads: Iterable[object]) -> None:
        """After the commit, notify the listeners of ``channel``, in this process and in others."""
        self.notifications += [(channel, str(payload)) for payload in payloads]

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """If the block raises, undo what it wrote and all that it left for the commit."""
        outgoing, hooks, notifications = len(self.outgoing), len(self.after_commit), len(self.notifications)
        checks = dict(self.checks)
        try:
            with self.conn.begin_nested():
                yield
        except Exception:
            del self.outgoing[outgoing:], self.after_commit[hooks:], self.notifications[notifications:]
            self.checks = checks
            raise

    def _add(
        self, topic: Topic, key: bytes | None, value: bytes | None, headers: outbox.HeaderList, *, linger: bool = False
    ) -> None:
        if value is not None and len(value) > self.max_message_bytes:
            raise Poison(f"a message for {topic} has {len(value):,} bytes; the limit is {self.max_message_bytes:,}")
        self.outgoing.append(Outgoing(topic, key, value, headers, linger))


def _as_bytes(headers: Mapping[str, str]) -> outbox.HeaderList:
    return tuple((name, value.encode()) for name, value in headers.items())


@contextmanager
def shard_transaction(
    engine: Engine, service: Service, partition: int, epoch: int, max_message_bytes: int
) -> Iterator[Transaction]:
    """Begin, assert the epoch and yield; then write the outbox and commit.

    If nothing else was written, it is rolled back instead: a commit costs a flush of the log.
    Raises ``Fenced`` for a former owner. Raises nothing after the commit: failing hooks are logged.
    """
    with engine.connect() as conn:
        assert_epoch(conn, service, partition, epoch)
        before = writes(conn)
        tx = Transaction(conn, service, partition, epoch, max_message_bytes)
        yield tx
        write_outbox(tx)
        if writes(conn) > before:
            conn.commit()
        else:
            conn.rollback()
    announce_commit(tx)


@contextmanager
def token_transaction(
    engine: Engine, service: Service, partition: int, max_message_bytes: int
) -> Iterator[Transaction]:
    """Lock the shard's row instead of asserting the epoch; for writes that a token guards."""
    with engine.begin() as conn:
        lock_shard(conn, service, partition)
        tx = Transaction(conn, service, partition, NO_EPOCH, max_message_bytes)
        yield tx
        write_outbox(tx)
    announce_commit(tx)


def write_outbox(tx: Transaction) -> None:
    """Insert the outgoing events: the last statement of every transaction."""
    outbox.insert_rows(tx.conn, SERVICE_TABLES[tx.service.package], tx.outgoing)
    crash_point("outbox:written")


def announce_commit(tx: Transaction) -> None:
    """Wake the relay and listeners, then run hooks. After a crash, polls find the work."""
    when = outbox.LATER if all(row.linger for row in tx.outgoing) else ""
    relay = [(outbox.channel(tx.service.package), when)] if tx.outgoing else []
    notifications = [*relay, *tx.notifications]
    if notifications:
        announce(notifications)
    tx.run_hooks()


def assert_epoch(conn: Connection, service: Service, partition: int, epoch: int) -> None:
    """First statement; serializes the shard's transactions. Raises ``Fenced`` if not the owner."""
    update_shard(conn, service, partition, epoch, {"epoch": epoch})


def update_shard(conn: Connection, service: Service, partition: int, epoch: int, values: Mapping[str, Any]) -> None:
    """Update the shard's row as its owner. Raises ``Fenced`` for a former owner."""
    parameters = {"ours": partition, "our_epoch": epoch, **{f"new_{name}": value for name, value in values.items()}}
    if conn.execute(_update_shard(service.package, tuple(values)), parameters).rowcount != 1:
        raise Fenced(f"{service.name}: shard {partition} has a newer owner than epoch {epoch}")


@cache
def _update_shard(package: str, names: tuple[str, ...]) -> Update:
    shard = SERVICE_TABLES[package].shard
    ours = (shard.c.partition == bindparam("ours")) & (shard.c.epoch == bindparam("our_epoch"))
    return update(shard).where(ours).values({name: bindparam(f"new_{name}") for name in names})


def lock_shard(conn: Connection, service: Service, partition: int) -> None:
    """Lock the shard's row without asserting an epoch."""
    conn.execute(_lock_shard(service.package), {"ours": partition})


@cache
def _lock_shard(package: str) -> Select[int]:
    shard = SERVICE_TABLES[package].shard
    return select(shard.c.epoch).where(shard.c.partition == bindparam("ours")).with_for_update(key_share=True)


def move_offsets(conn: Connection, service: Service, partition: int, moves: Mapping[str, Move]) -> None:
    """Move consumed offsets by compare-and-set. Raises ``Fenced`` if one is not as expected."""
    changed = [move for move in moves.values() if move.new != move.old]
    if not changed:
        return
    given = _MOVES.values(
        topic=(move.topic for move in changed), old=(move.old for move in changed), new=(move.new for move in changed)
    )
    if conn.execute(_move_offsets(service.package), {"ours": partition, **given}).rowcount != len(changed):
        raise Fenced(f"{service.name}: another owner moved an offset of shard {partition}")


_MOVES = Arrays("given", topic=Text, old=BigInteger, new=BigInteger)


@cache
def _move_offsets(package: str) -> Update:
    c, given = SERVICE_TABLES[package].offset.c, _MOVES.c
    ours = (c.partition == bindparam("ours")) & (c.topic == given.topic) & (c.next_offset == given.old)
    return update(SERVICE_TABLES[package].offset).where(ours).values(next_offset=given.new)
