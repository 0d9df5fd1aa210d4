"""Recovery after lost commits: new epochs, ids and attempts exceed all that may have been used.

Each recovery is a generation (``history.py``). Its number comes from Kafka too (``recover`` writes an
epoch there), so a copy restored twice gets new numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Table,
    delete,
    func,
    null,
    select,
    text,
    update,
)

from retrofill.states import LIVE, AttemptOutcome, AttemptState
from retrofill_core.contract.topics import RUN_STARTER, Topic
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, runs
from retrofill_core.store import tables as t
from retrofill_core.store.history import Timeline
from retrofill_core.store.outbox import Outgoing, Stored, insert_rows
from retrofill_core.store.rows import columns_of
from retrofill_core.store.sql import Arrays, database_now, in_state
from retrofill_core.store.tables import SERVICE_TABLES, attempt, backfill, run


def offsets(conn: Connection, topic: Topic, package: str) -> dict[tuple[str, int], int]:
    """A service's next offsets, by topic and partition."""
    table = SERVICE_TABLES[package].offset
    rows = conn.execute(select(table.c.partition, table.c.next_offset).where(table.c.topic == topic)).all()
    return {(str(topic), row.partition): row.next_offset for row in rows}


def jump_to(conn: Connection, generation: int) -> None:
    """Fence all owners of shards and relays, and advance the sequences of hosts, attempts, runs and deadlines."""
    conn.execute(text(f"SELECT {t.SCHEMA}.jump_to(:generation)"), {"generation": generation})


def set_relay(conn: Connection, package: str, cursor: int) -> bool:
    """Whether the relay was behind ``cursor``.

    If so, its batch is dropped: the rows are unnumbered again. Its transactional id stays: a relay that took over
    since ``recover`` fenced the ids has this one, and the next relay fences it.
    """
    relay = SERVICE_TABLES[package].relay
    behind = conn.execute(select(relay.c.batch < cursor).with_for_update()).scalar_one()
    if behind:
        conn.execute(update(relay).values(batch=cursor, batch_ids=[]))
    return bool(behind)


def waiting(conn: Connection, package: str) -> list[Stored]:
    """All rows of a service's outbox."""
    box = SERVICE_TABLES[package].outbox
    return [Stored(*row) for row in conn.execute(select(*columns_of(Stored, box)))]


def drop(conn: Connection, package: str, ids: Collection[int]) -> None:
    """Delete outbox rows by id."""
    box = SERVICE_TABLES[package].outbox
    if ids:
        conn.execute(delete(box).where(box.c.id == func.any(list(ids))))


_SEEN = Arrays("seen", id=BigInteger, attempt=Integer, publication=Integer)


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that had begun and whose attempt was given up."""

    id: int
    backfill_id: str
    interval_start: datetime
    interval_end: datetime
    attempt: int
    restores: int | None
    pipeline: str


def requeue_runs(
    conn: Connection, numbers: Mapping[int, int], publications: Mapping[int, int], margin: int
) -> list[Begun]:
    """End all live attempts, and queue their runs again, uncounted.

    Unfinished runs continue ``margin`` beyond the attempt ``numbers`` in Kafka. Accepted runs get
    another publisher, ``margin`` beyond the ``publications`` there. Returns those that had begun.
    """
    given_up = _begun_runs(conn)
    now = database_now(conn)
    seen = _SEEN.values(id=numbers, attempt=numbers.values(), publication=(publications.get(id, 0) for id in numbers))

    def beyond(column: Column[int], shown: ColumnElement[int]) -> ColumnElement[int]:
        found = select(shown).where(_SEEN.c.id == run.c.id).scalar_subquery()
        return func.greatest(column, func.coalesce(found, 0)) + margin

    conn.execute(
        update(run)
        .where(in_state(run, RunState.PUBLISHING, RunState.STAGED))
        .values(
            state=RunState.STAGED,
            publication=beyond(run.c.publication, _SEEN.c.publication),
            times_out_at=None,
        ),
        seen,
    )
    # A run that was marked as timed out would fail for it when its next attempt is released.
    conn.execute(
        update(run)
        .where(in_state(run, RunState.QUEUED, RunState.STARTING, RunState.RUNNING))
        .values(
            state=RunState.QUEUED,
            attempt=beyond(run.c.attempt, _SEEN.c.attempt),
            times_out_at=None,
            error=null(),
        ),
        seen,
    )
    # All services are stopped: no host is alive.
    for table in (t.seat_wait, t.seat, t.host):
        conn.execute(delete(table))
    conn.execute(
        update(attempt)
        .where(in_state(attempt, *LIVE))
        .values(state=AttemptState.ENDED, outcome=AttemptOutcome.RELEASED, ended_at=now, **attempts.NOT_LIVE)
    )
    runs.cancel_open_tasks(conn, [(each.id, each.attempt) for each in given_up], now)
    return given_up


def _begun_runs(conn: Connection) -> list[Begun]:
    columns = (run.c.id, run.c.backfill_id, run.c.interval_start, run.c.interval_end, run.c.attempt, run.c.restores)
    found = (
        select(*columns, backfill.c.pipeline)
        .join(backfill, backfill.c.id == run.c.backfill_id)
        .where(in_state(run, RunState.RUNNING))
        .order_by(run.c.id)
    )
    return [Begun(*row) for row in conn.execute(found)]


def skip_reports(conn: Connection, ends: Mapping[tuple[str, int], int]) -> None:
    """Skip run reports before ``ends``: their attempts were given up, or their runs lost."""
    table: Table = SERVICE_TABLES[RUN_STARTER.package].offset
    for (topic, partition), end in ends.items():
        conn.execute(
            update(table)
            .where(table.c.topic == topic, table.c.partition == partition, table.c.next_offset < end)
            .values(next_offset=end)
        )


def publish(conn: Connection, package: str, rows: Sequence[Outgoing]) -> None:
    """Insert events into a service's outbox, published once the service runs again."""
    insert_rows(conn, SERVICE_TABLES[package], rows)


def record_history(conn: Connection, here: Timeline | None) -> None:
    """Record this Postgres and its timeline as the ones to work on."""
    values = {
        "system_identifier": None if here is None else here.system_identifier,
        "timeline": None if here is None else here.timeline,
    }
    conn.execute(update(t.installation).values(values))
