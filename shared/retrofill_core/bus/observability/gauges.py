"""Gauges that every service exports: its shards, their lag, and the state of its outbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Engine, Select, func, select

from retrofill_core.bus.observability import metrics
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.contract.topics import Service
from retrofill_core.store.tables import SERVICE_TABLES, ServiceTables


class OwnedShards(Protocol):
    """What the gauges show of an instance's shards; from any thread."""

    def owned(self) -> Sequence[int]:
        """Partitions of the shards that this instance owns."""

    def shards_by_state(self) -> Mapping[str, float]:
        """The number of shards that are assigned to it."""


def register_gauges(service: Service, engine: Engine, shards: OwnedShards, topics: TopicIds) -> None:
    """Export the gauges. Values are read on a scrape."""
    own = SERVICE_TABLES[service.package]

    def lag() -> dict[str, float]:
        return _lag(service, own, engine, list(shards.owned()), topics)

    def read(query: Select[Any]) -> Callable[[], dict[str, float]]:
        return lambda: {service.name: _scalar(engine, query)}

    refused = read(select(func.count()).select_from(own.refused))
    waiting = read(select(func.count()).select_from(own.outbox))
    age = func.extract("epoch", func.clock_timestamp() - func.min(own.outbox.c.created_at))
    oldest = read(select(func.coalesce(age, 0)))
    for gauge in (
        # Without it, nothing would show a shard that is not owned: it has no lag.
        metrics.Polled(
            "retrofill_shards",
            "Shards that are assigned to this instance",
            "state",
            shards.shards_by_state,
            seconds=0.0,
        ),
        metrics.Polled("retrofill_lag_messages", "Offsets of owned shards not yet handled, by topic", "topic", lag),
        metrics.Polled(
            "retrofill_outbox_refused_events", "Dead letters that Kafka refused, kept in Postgres", "service", refused
        ),
        metrics.Polled("retrofill_outbox_events", "Events waiting to be published", "service", waiting),
        metrics.Polled(
            "retrofill_outbox_oldest_age_seconds", "Age of the oldest event waiting to be published", "service", oldest
        ),
    ):
        metrics.register(gauge)


def _lag(
    service: Service, own: ServiceTables, engine: Engine, partitions: list[int], topics: TopicIds
) -> dict[str, float]:
    found = {str(topic): 0.0 for topic in service.reads}
    if not partitions:
        return found
    ends = topics.ends.high_watermarks(dict.fromkeys(found, partitions))
    offset = own.offset.c
    query = select(offset.topic, offset.partition, offset.next_offset).where(offset.partition.in_(partitions))
    with engine.connect() as conn:
        for row in conn.execute(query):
            found[row.topic] += max(0, ends[row.topic, row.partition] - row.next_offset)
    return found


def _scalar(engine: Engine, query: Select[Any]) -> float:
    with engine.connect() as conn:
        return float(conn.execute(query).scalar_one())
