"""Messages that kill the process that handles them: found at takeover and set aside.

A killed process reports nothing. So the next owner checks whether the shard advanced since the last
takeover. If not, it handles the next messages one by one and commits, before each, which one it is
about to try. A message that ``DEATHS`` processes died of becomes a dead letter. Extra commits
happen only then (``docs/decisions/deaths-are-counted-late.md``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine, func, select, update

from retrofill_core.bus.envelope import Record
from retrofill_core.bus.transaction import update_shard
from retrofill_core.contract.topics import Service
from retrofill_core.store.tables import SERVICE_TABLES

# One or two processes may have died for another reason.
DEATHS = 3


@dataclass(frozen=True)
class Suspect:
    """A message that was being tried alone when an owner died, and how often that has happened."""

    topic: str
    offset: int
    deaths: int

    def matches(self, record: Record) -> bool:
        """Whether ``record`` is this message."""
        return (self.topic, self.offset) == (record.topic, record.offset)


def find_suspect(
    conn: Connection, service: Service, partition: int, offsets: Mapping[str, int], tried: Suspect
) -> Suspect | None:
    """At a takeover: the message that the last owner was trying, its death counted, unless it was handled."""
    if offsets.get(tried.topic, tried.offset + 1) > tried.offset:
        return None
    shard = SERVICE_TABLES[service.package].shard
    deaths = tried.deaths + 1
    conn.execute(update(shard).where(shard.c.partition == partition).values(trying_deaths=deaths))
    return replace(tried, deaths=deaths)


def unmoved_offsets(conn: Connection, service: Service, partition: int, topics: Collection[str]) -> dict[str, int]:
    """At a takeover: the offsets of ``topics`` that have not moved since the last takeover."""
    table = SERVICE_TABLES[service.package].offset
    found = conn.execute(
        select(table.c.topic, table.c.next_offset, table.c.taken_offset).where(table.c.partition == partition)
    ).all()
    # Added partitions of two topics may have the same number, and other owners.
    rows = [row for row in found if row.topic in topics]
    moved = [row.topic for row in rows if row.taken_offset != row.next_offset]
    if moved:
        ours = (table.c.partition == partition) & (table.c.topic == func.any(moved))
        conn.execute(update(table).where(ours).values(taken_offset=table.c.next_offset))
    return {row.topic: row.next_offset for row in rows if row.topic not in moved}


def record_try(
    engine: Engine, service: Service, partition: int, epoch: int, record: Record | None, deaths: int
) -> None:
    """Commit that ``record``, or nothing, is being tried. Raises ``Fenced`` for a former owner."""
    values = {
        "trying_topic": None if record is None else record.topic,
        "trying_offset": None if record is None else record.offset,
        "trying_deaths": None if record is None else deaths,
    }
    with engine.begin() as conn:
        update_shard(conn, service, partition, epoch, values)
