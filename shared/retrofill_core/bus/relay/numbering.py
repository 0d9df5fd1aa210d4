"""The relay's Postgres side: numbers batches of outbox rows and deletes published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Delete,
    Engine,
    Select,
    Update,
    bindparam,
    delete,
    insert,
    literal,
    select,
    update,
)

from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.envelope import dead_letter_of
from retrofill_core.bus.faults import Fenced
from retrofill_core.bus.relay.cursor import Marks
from retrofill_core.bus.relay.refusals import Decision, HeldTopics, Holds, Narrow, RefusedAlone, Stuck, Wait
from retrofill_core.bus.went_back import contradiction
from retrofill_core.contract.topics import TRANSACTIONAL_IDS, Service, Topic
from retrofill_core.store.history import PostgresWentBack, RelayRow
from retrofill_core.store.outbox import Outgoing, Stored, insert_rows, take, unpack_headers
from retrofill_core.store.rows import columns_of
from retrofill_core.store.sql import one_of
from retrofill_core.store.tables import SERVICE_TABLES, ServiceTables

log = get_log(__name__)


BATCH_ROWS = 1000
# Held in memory here, and once more in the Kafka client.
BATCH_BYTES = 8_000_000


@dataclass(frozen=True)
class Batch:
    """The batch that is numbered and not known to be published."""

    number: int
    rows: Sequence[Stored]


@dataclass(frozen=True, slots=True)
class Last:
    """The last numbered batch, and the rows of it that are not known to be published."""

    batch: int
    ids: list[int]


class Numbering:
    """One relay's batches. After ``take_epoch``, raises ``Fenced`` once another relay took over."""

    def __init__(self, engine: Engine, service: Service, holds: Holds) -> None:
        self._engine = engine
        self._service = service
        self._holds = holds
        self._own: ServiceTables = SERVICE_TABLES[service.package]
        self.epoch = -1
        # Which of the service's transactional ids to publish with.
        self.transactional = 0
        self._limit = BATCH_ROWS
        # A refused batch's number, row ids and decision, applied once its transaction is aborted.
        self._refused: tuple[int, list[int], Decision] | None = None

    def take_epoch(self) -> None:
        """Become the relay in Postgres: from here on, a predecessor cannot number rows."""
        relay = self._own.relay
        with self._engine.begin() as conn:
            self.epoch, self.transactional = conn.execute(
                update(relay)
                .values(epoch=relay.c.epoch + 1, taken_epoch=relay.c.epoch + 1)
                .returning(relay.c.epoch, relay.c.transactional)
            ).one()

    def change_id(self) -> None:
        """Have relays publish with the next transactional id, from the next takeover on.

        Only after this relay's own transaction was certainly aborted: it was the last one to take
        over with this id, so nobody can commit with it any more.
        """
        with self._engine.begin() as conn:
            self._update(conn, transactional=(self.transactional + 1) % TRANSACTIONAL_IDS)

    def recover(self, cursor: int) -> Batch | None:
        """Delete the last batch if ``cursor`` shows it was published; returns the next to send.

        Raises ``PostgresWentBack`` where Kafka is ahead of Postgres.
        """
        with self._engine.begin() as conn:
            last = self._assert_epoch(conn)
            marks = Marks(cursor, taken=self.epoch)
            if (reason := contradiction(self._service, marks, RelayRow(self.epoch, last.batch))) is not None:
                raise PostgresWentBack(reason)
            if last.batch == cursor:
                self._refused = None
                self._delete(conn, last.ids)
                return self._number(conn, last)
            return self._decided(conn, last)

    def next(self, published: Batch | None) -> Batch | None:
        """Delete the published batch and number the next, in one transaction."""
        with self._engine.begin() as conn:
            last = self._assert_epoch(conn)
            if published is not None:
                self._delete(conn, last.ids)
                crash_point("relay:before-deletion-commit")
            return self._number(conn, last)

    def published(self) -> None:
        """A batch went through: allow larger ones again."""
        self._limit = min(BATCH_ROWS, 2 * self._limit)

    def refused(self, batch: Batch, decision: Decision) -> None:
        """Remember ``decision`` for ``recover``."""
        self._refused = (batch.number, [row.id for row in batch.rows], decision)

    def _decided(self, conn: Connection, last: Last) -> Batch | None:
        """The unpublished batch to send again, with fewer rows where it was refused.

        It keeps its number: nobody has published, or can publish, another batch of this number.
        """
        number, refused, decision = self._refused or (0, [], Wait())
        self._refused = None
        ids = last.ids
        # Another relay may have changed the batch of this number in the meantime.
        if (number, refused) == (last.batch, ids):
            ids = self._kept(conn, ids, decision)
        if ids != last.ids:
            self._update(conn, batch_ids=ids)
            if not ids:
                return self._number(conn, last)
        return Batch(last.batch, self._rows(conn, ids))

    def _kept(self, conn: Connection, ids: list[int], decision: Decision) -> list[int]:
        """The rows of a refused batch that stay in it."""
        match decision:
            case Narrow(rows):
                self._limit = rows
                return ids[:rows]
            case HeldTopics(topics):
                return [row.id for row in self._rows(conn, ids) if row.topic not in topics]
            case Stuck(topics):
                # It may only have been slow: then fewer rows get through.
                self._limit = max(1, len(ids) // 2)
                return [row.id for row in self._rows(conn, ids) if row.topic not in topics]
            case RefusedAlone(id, reason):
                crash_point("relay:setting-aside")
                set_aside(conn, self._service, self._own, id, reason)
                return [each for each in ids if each != id]
            case _:
                return ids

    def _assert_epoch(self, conn: Connection) -> Last:
        """First statement: a predecessor must not number rows that a later cursor skips."""
        last = conn.execute(_last(self._own), {"epoch": self.epoch}).first()
        if last is None:
            raise self._fenced()
        return Last(*last)

    def _number(self, conn: Connection, last: Last) -> Batch | None:
        rows = self._rows(conn, take(conn, self._own, self._limit, BATCH_BYTES, self._holds.waiting()))
        if not rows and not last.ids:
            return None
        number = last.batch + 1 if rows else last.batch
        self._update(conn, batch=number, batch_ids=[row.id for row in rows])
        return Batch(number, rows) if rows else None

    def _update(self, conn: Connection, **values: int | list[int]) -> None:
        parameters = {"our_epoch": self.epoch, **{f"new_{name}": value for name, value in values.items()}}
        if conn.execute(_update(self._own, tuple(values)), parameters).rowcount != 1:
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(f"{self._service.name}: another relay took over")

    def _delete(self, conn: Connection, ids: Sequence[int]) -> None:
        if ids:
            conn.execute(_delete(self._own), {"ids": ids})

    def _rows(self, conn: Connection, ids: Sequence[int]) -> list[Stored]:
        return [Stored(*row) for row in conn.execute(_rows(self._own), {"ids": ids})] if ids else []


@cache
def _last(own: ServiceTables) -> Select[int, list[int]]:
    c = own.relay.c
    return select(c.batch, c.batch_ids).where(c.epoch == bindparam("epoch")).with_for_update(key_share=True)


@cache
def _update(own: ServiceTables, names: tuple[str, ...]) -> Update:
    ours = own.relay.c.epoch == bindparam("our_epoch")
    return update(own.relay).where(ours).values({name: bindparam(f"new_{name}") for name in names})


@cache
def _delete(own: ServiceTables) -> Delete:
    return delete(own.outbox).where(one_of(own.outbox.c.id, "ids"))


@cache
def _rows(own: ServiceTables) -> Select[Any]:
    columns = columns_of(Stored, own.outbox)
    return select(*columns).where(one_of(own.outbox.c.id, "ids")).order_by(own.outbox.c.id)


def set_aside(conn: Connection, service: Service, own: ServiceTables, id: int, reason: str) -> None:
    """Replace outbox row ``id`` by its dead letter, in the caller's transaction.

    A refused dead letter is moved to ``<service>_outbox_refused``: it cannot be published anywhere.
    """
    box = own.outbox
    (row,) = [Stored(*row) for row in conn.execute(_rows(own), {"ids": [id]})]
    why = f"Kafka refuses outbox row {id}: {reason}"
    if row.topic == Topic.DEAD_LETTERS:
        names = [column.name for column in box.columns]
        kept = select(*box.columns, literal(why)).where(box.c.id == id)
        conn.execute(insert(own.refused).from_select([*names, "reason"], kept))
    else:
        insert_rows(conn, own, [dead_letter_of(_message(row), why, service.name)])
        metrics.DEAD_LETTERS.labels(row.topic).inc()
    conn.execute(delete(box).where(box.c.id == id))
    log.error(
        "event_refused",
        outbox_row=id,
        topic=row.topic,
        key=(row.key or b"").decode("utf-8", "replace"),
        reason=reason,
        kept_in=own.refused.name if row.topic == Topic.DEAD_LETTERS else str(Topic.DEAD_LETTERS),
    )


def _message(row: Stored) -> Outgoing:
    headers = tuple((name, raw.encode() if isinstance(raw, str) else raw) for name, raw in unpack_headers(row.headers))
    return Outgoing(row.topic, row.key, row.value, headers)
