"""What every service shows of its queues, read when somebody scrapes: how far it is behind, and what waits to be published."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Engine, func, select

from retrofill.bus.observability import metrics
from retrofill.bus.takeover import TopicIds
from retrofill.contract.topics import Service
from retrofill.store.tables import SERVICE_TABLES


def measure(service: Service, engine: Engine, owned: Callable[[], Sequence[int]], topics: TopicIds) -> None:
    """Show lag by topic, of the shards that this instance owns, and the outbox of the service."""
    own = SERVICE_TABLES[service.package]

    def lag() -> dict[str, float]:
        partitions = list(owned())
        found = {str(topic): 0.0 for topic in service.reads}
        if not partitions:
            return found
        ends = topics.ends.high_watermarks(dict.fromkeys(found, partitions))
        with engine.connect() as conn:
            rows = conn.execute(
                select(own.offset.c.topic, own.offset.c.partition, own.offset.c.next_offset).where(
                    own.offset.c.partition.in_(partitions)
                )
            )
            for row in rows:
                found[row.topic] += max(0, ends[row.topic, row.partition] - row.next_offset)
        return found

    def waiting() -> dict[str, float]:
        with engine.connect() as conn:
            return {service.name: conn.execute(select(func.count()).select_from(own.outbox)).scalar_one()}

    def oldest() -> dict[str, float]:
        age = func.extract("epoch", func.clock_timestamp() - func.min(own.outbox.c.created_at))
        with engine.connect() as conn:
            return {service.name: float(conn.execute(select(func.coalesce(age, 0))).scalar_one())}

    metrics.register(
        metrics.Polled("retrofill_lag_messages", "Offsets of owned shards that are not handled yet", "topic", lag)
    )

    def refused() -> dict[str, float]:
        with engine.connect() as conn:
            return {service.name: conn.execute(select(func.count()).select_from(own.refused)).scalar_one()}

    metrics.register(
        metrics.Polled(
            "retrofill_outbox_refused_events", "Dead letters that Kafka refuses, kept in Postgres", "service", refused
        )
    )
    metrics.register(metrics.Polled("retrofill_outbox_events", "Events that wait to be published", "service", waiting))
    metrics.register(
        metrics.Polled("retrofill_outbox_oldest_age_seconds", "Age of the oldest of them", "service", oldest)
    )
