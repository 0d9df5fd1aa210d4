"""Outbox rows: events written in the same transaction as the facts they report."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import Connection, Insert, Integer, LargeBinary, Select, Text, bindparam, func, insert, select
from sqlalchemy.dialects.postgresql import JSONB

from retrofill_core.store.sql import Arrays, none_of
from retrofill_core.store.tables import ServiceTables

HeaderList = tuple[tuple[str, bytes | None], ...]
# Notification of rows that the relay may publish a moment later, together with others.
LATER = "later"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish; ``topic`` has no prefix. ``linger``: it may wait a moment."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    linger: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of an outbox. Its headers are packed."""

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[list[str | None]]
    created_at: datetime


def channel(package: str) -> str:
    """The NOTIFY channel that wakes the relay of a service."""
    return f"retrofill_outbox_{package}"


_ROWS = Arrays("given", number="no", topic=Text, key=LargeBinary, value=LargeBinary, headers=Text)


def insert_rows(conn: Connection, own: ServiceTables, rows: Sequence[Outgoing]) -> None:
    """Insert ``rows`` in order. The caller notifies ``channel`` to wake the relay."""
    if not rows:
        return
    given = _ROWS.values(
        topic=(row.topic for row in rows),
        key=(row.key for row in rows),
        value=(row.value for row in rows),
        headers=(pack_headers(row.headers) for row in rows),
    )
    conn.execute(_insert(own), given)


@cache
def _insert(own: ServiceTables) -> Insert:
    c = _ROWS.c
    chosen = select(c.topic, c.key, c.value, c.headers.cast(JSONB)).order_by(c.no)
    return insert(own.outbox).from_select(["topic", "key", "value", "headers"], chosen)


def take(conn: Connection, own: ServiceTables, most: int, most_bytes: int, excluding: Sequence[str]) -> list[int]:
    """Ids of the next rows, in order, except those of the topics ``excluding``.

    At most ``most`` rows and ``most_bytes`` bytes, but at least one row. Only sizes are read, so
    memory never holds more than one batch of values.
    """
    ids: list[int] = []
    left = most_bytes
    for row in conn.execute(_next(own), {"most": most, "excluding": list(excluding)}):
        left -= row.size
        if left < 0 and ids:
            break
        ids.append(row.id)
    return ids


@cache
def _next(own: ServiceTables) -> Select[int, int]:
    c = own.outbox.c
    size = func.coalesce(func.octet_length(c.value), 0) + func.pg_column_size(c.headers)
    chosen = select(c.id, size.label("size")).where(none_of(c.topic, "excluding"))
    return chosen.order_by(c.id).limit(bindparam("most", type_=Integer))


def pack_headers(headers: HeaderList) -> str:
    """Headers as JSON: [name, text], or [name, null, base64] for a value that is not text."""
    packed: list[list[str | None]] = []
    for name, value in headers:
        try:
            plain = None if value is None else value.decode("utf-8")
        except UnicodeDecodeError:
            plain = None
        if value is not None and (plain is None or "\x00" in plain):
            packed.append([name, None, base64.b64encode(value).decode()])
        else:
            packed.append([name, plain])
    return json.dumps(packed)


def unpack_headers(packed: Iterable[Sequence[str | None]]) -> list[tuple[str, str | bytes | None]]:
    """Reverse of ``pack_headers``, as the Kafka client expects headers."""
    unpacked: list[tuple[str, str | bytes | None]] = []
    for name, plain, *coded in packed:
        assert name is not None
        raw = base64.b64decode(coded[0]) if coded and coded[0] else None
        unpacked.append((name, raw if raw is not None else None if plain is None else plain.encode()))
    return unpacked
