"""Messages that end the process that handles them: found by who takes the shard over, and set aside like other poison.

A process that is killed says nothing. So its successor looks whether the shard went on since it was taken last. If not, it
handles message by message for a while, and writes down before each which one it is; that costs commits, and only then. The
one under which ``DEATHS`` processes died alone is a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, func, select, update

from retrofill.bus.envelope import Record
from retrofill.bus.faults import Fenced
from retrofill.contract.topics import Service
from retrofill.store.tables import SERVICE_TABLES

# Of processes that handled nothing else: one may have been ended for another reason, and so may two.
DEATHS = 3


@dataclass(frozen=True)
class Suspect:
    """A message that was tried alone when the last owner ended, and how often that has happened."""

    topic: str
    offset: int
    deaths: int

    def is_of(self, record: Record) -> bool:
        """Whether it is this message."""
        return (self.topic, self.offset) == (record.topic, record.offset)


def suspect_of(
    conn: Connection, service: Service, partition: int, offsets: Mapping[str, int], tried: Any
) -> Suspect | None:
    """At a take-over: count the death of whoever tried a message last, where that is still to be handled.

    ``tried``: the columns of the shard's row.
    """
    if tried.trying_topic is None or offsets.get(tried.trying_topic, tried.trying_offset + 1) > tried.trying_offset:
        return None
    shard = SERVICE_TABLES[service.package].shard
    deaths = tried.trying_deaths + 1
    conn.execute(update(shard).where(shard.c.partition == partition).values(trying_deaths=deaths))
    return Suspect(tried.trying_topic, tried.trying_offset, deaths)


def where_it_stands(conn: Connection, service: Service, partition: int) -> dict[str, int]:
    """At a take-over: the topics of which nothing was handled since the last one, and where they stand."""
    table = SERVICE_TABLES[service.package].offset
    rows = conn.execute(
        select(table.c.topic, table.c.next_offset, table.c.taken_offset).where(table.c.partition == partition)
    ).all()
    moved = [row.topic for row in rows if row.taken_offset != row.next_offset]
    if moved:
        ours = (table.c.partition == partition) & (table.c.topic == func.any(moved))
        conn.execute(update(table).where(ours).values(taken_offset=table.c.next_offset))
    return {row.topic: row.next_offset for row in rows if row.topic not in moved}


def write_down(
    engine: Engine, service: Service, partition: int, epoch: int, record: Record | None, deaths: int = 0
) -> None:
    """Commit that ``record`` is being tried, or with ``None`` that nothing is. Raises ``Fenced`` for a former owner."""
    shard = SERVICE_TABLES[service.package].shard
    values = {
        "trying_topic": None if record is None else record.topic,
        "trying_offset": None if record is None else record.offset,
        "trying_deaths": None if record is None else deaths,
    }
    ours = (shard.c.partition == partition) & (shard.c.epoch == epoch)
    with engine.begin() as conn:
        if conn.execute(update(shard).where(ours).values(**values)).rowcount != 1:
            raise Fenced(f"{service.name}: shard {partition} has a newer owner than epoch {epoch}")
