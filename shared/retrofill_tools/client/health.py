"""Health of an installation's services: their instances, and how far behind they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka.admin import AdminClient
from sqlalchemy import Connection, func, select, text

from retrofill_core.bus.takeover import Ends
from retrofill_core.contract.topics import SERVICES, Service
from retrofill_core.store.tables import SERVICE_TABLES

Place = tuple[str, int]
# An instance's name ends with its process id; some of its connections have a word more.
_OF_CONNECTION = re.compile(r"(?<=\d)-[a-z]+$")
_CONNECTED = text("SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()")


def services(conn: Connection) -> list[dict[str, Any]]:
    """Each service: its ``replicas`` (instances connected to Postgres now), ``shards`` and those ``owned``,
    and events that are ``unpublished``; ``offsets``: the next one of each topic and partition.
    """
    connected = sorted(conn.execute(_CONNECTED).scalars())
    return [_service(conn, service, connected) for service in SERVICES.values()]


def _service(conn: Connection, service: Service, connected: list[str]) -> dict[str, Any]:
    own = SERVICE_TABLES[service.package]
    shards, owned = conn.execute(select(func.count(), func.count(own.shard.c.owner)).select_from(own.shard)).one()
    age = func.extract("epoch", func.clock_timestamp() - func.min(own.outbox.c.created_at))
    unpublished, oldest = conn.execute(select(func.count(), age).select_from(own.outbox)).one()
    offsets = conn.execute(select(own.offset.c.topic, own.offset.c.partition, own.offset.c.next_offset))
    return {
        "name": service.name,
        "replicas": sorted({_OF_CONNECTION.sub("", name) for name in connected if name.startswith(f"{service.name}-")}),
        "shards": shards,
        "owned": owned,
        "unpublished": unpublished,
        "oldest_unpublished_seconds": None if oldest is None else round(float(oldest), 3),
        "offsets": {(topic, partition): next_offset for topic, partition, next_offset in offsets},
    }


def lag(client: AdminClient, prefix: str, offsets: Mapping[Place, int]) -> int:
    """Messages on Kafka that are not handled yet. Raises ``KafkaException``."""
    partitions: dict[str, list[int]] = {}
    for topic, partition in offsets:
        partitions.setdefault(topic, []).append(partition)
    ends = Ends(lambda: client, lambda: None, prefix).high_watermarks(partitions) if partitions else {}
    return sum(max(0, ends[place] - next_offset) for place, next_offset in offsets.items())
