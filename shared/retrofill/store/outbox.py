"""Outbox rows: events written in the same transaction as the facts they report."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, LargeBinary, Text, func, insert, select
from sqlalchemy.dialects.postgresql import JSONB

from retrofill.store.arrays import rows_of
from retrofill.store.tables import ServiceTables

HeaderList = tuple[tuple[str, bytes | None], ...]
# Notification of rows that the relay may publish a moment later, together with others.
LATER = "later"


@dataclass(frozen=True)
class Outgoing:
    """A message to publish; ``topic`` has no prefix."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: HeaderList


def channel(package: str) -> str:
    """The NOTIFY channel that wakes the relay of a service."""
    return f"retrofill_outbox_{package}"


def insert_rows(conn: Connection, own: ServiceTables, rows: Sequence[Outgoing]) -> None:
    """Insert ``rows`` in order. The caller notifies ``channel`` to wake the relay."""
    if not rows:
        return
    given = rows_of(
        "given",
        {
            "topic": (Text, [row.topic for row in rows]),
            "key": (LargeBinary, [row.key for row in rows]),
            "value": (LargeBinary, [row.value for row in rows]),
            "headers": (Text, [pack_headers(row.headers) for row in rows]),
        },
        number="no",
    )
    chosen = select(given.c.topic, given.c.key, given.c.value, given.c.headers.cast(JSONB)).order_by(given.c.no)
    conn.execute(insert(own.outbox).from_select(["topic", "key", "value", "headers"], chosen))


def take(conn: Connection, own: ServiceTables, most: int, most_bytes: int, excluding: Sequence[str]) -> list[int]:
    """Ids of the next rows, in order, except those of the topics ``excluding``.

    At most ``most`` rows and ``most_bytes`` bytes, but at least one row. Only sizes are read, so
    memory never holds more than one batch of values.
    """
    c = own.outbox.c
    size = func.coalesce(func.octet_length(c.value), 0) + func.pg_column_size(c.headers)
    chosen = select(c.id, size.label("size")).order_by(c.id).limit(most)
    if excluding:
        chosen = chosen.where(c.topic != func.all(list(excluding)))
    ids: list[int] = []
    left = most_bytes
    for row in conn.execute(chosen):
        left -= row.size
        if left < 0 and ids:
            break
        ids.append(row.id)
    return ids


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
