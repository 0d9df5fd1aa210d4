"""Detects when services have nothing left to do, so a test can assert that something did not
happen.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Consumer, TopicPartition

from retrofill_core.bus.clients import reader
from retrofill_core.contract.topics import Service
from tests.support.installation import PARTITIONS, Installation


def is_quiet(made: Installation, services: Sequence[Service]) -> bool:
    """Whether all services have handled everything on their topics and published everything that
    follows from it.
    """
    names = [service.name for service in services]
    before = ends_of(made, services)
    return (
        not made.unpublished(names)
        and stored_offsets(made, services) == before
        and not made.unpublished(names)
        and ends_of(made, services) == before
    )


def ends_of(made: Installation, services: Sequence[Service]) -> dict[tuple[str, int], int]:
    """The end offset of each partition that one of the services reads."""
    consumer: Consumer = reader(made.settings, "test-ends")
    try:
        return {
            (str(topic), partition): consumer.get_watermark_offsets(
                TopicPartition(f"{made.settings.topic_prefix}{topic}", partition), timeout=20
            )[1]
            for service in services
            for topic in service.reads
            for partition in range(PARTITIONS)
        }
    finally:
        consumer.close()


def stored_offsets(made: Installation, services: Sequence[Service]) -> dict[tuple[str, int], int]:
    """The services' consumed offsets."""
    tables = [f"SELECT topic, partition, next_offset FROM {service.package}_shard_offset" for service in services]
    return {(row["topic"], row["partition"]): row["next_offset"] for row in made.query(" UNION ALL ".join(tables))}
