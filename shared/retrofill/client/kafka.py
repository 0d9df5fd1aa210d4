"""Small Kafka helpers of the commands: committed reads by hand, and one durable write."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from retrofill.bus.clients import admin, producer, reader
from retrofill.contract.partitioning import ANY, partition_of, place_of
from retrofill.contract.topics import CLI_CLIENT
from retrofill.errors import UserError
from retrofill.settings import Settings

# The client library reports its connection troubles as log records; a command says the same in its one line.
_silent = logging.Logger("librdkafka-of-the-cli", logging.CRITICAL + 1)
CONNECT_SECONDS = 10.0

RawHeaders = Sequence[tuple[str, str | bytes | None]]


@contextmanager
def reading_topics(settings: Settings) -> Iterator[Consumer]:
    """A consumer that only looks, closed at the end."""
    consumer = reader(settings, CLI_CLIENT, logger=_silent)
    try:
        yield consumer
    finally:
        consumer.close()


def partitions_of(consumer: Consumer, topic: str, seconds: float = CONNECT_SECONDS) -> list[int]:
    """The partitions of a topic (its full name). Raises ``UserError`` where the broker does not know it."""
    known = consumer.list_topics(topic, timeout=min(seconds, CONNECT_SECONDS)).topics[topic]
    if known.error is not None or not known.partitions:
        raise UserError(f"Kafka has no topic {topic}: is RETROFILL_TOPIC_PREFIX right, and was everything set up?")
    return sorted(known.partitions)


def homes_of(
    settings: Settings, consumer: Consumer, topic: str, key: bytes, seconds: float = CONNECT_SECONDS
) -> list[tuple[str, int]]:
    """Where the services publish ``key`` on a topic (its full name).

    Where partitions were added to it, all of them are: who reads may have another number in the settings than was fixed at init.
    """
    known = partitions_of(consumer, topic, seconds)
    fixed = len(known) == settings.partitions
    return [(topic, p) for p in ([partition_of(key, len(known))] if fixed else known)]


def ends_of(
    consumer: Consumer, places: Sequence[tuple[str, int]], seconds: float = CONNECT_SECONDS
) -> list[TopicPartition]:
    """Where each (topic, partition) ends now: an offset from which all that comes later is read."""
    return [
        TopicPartition(topic, partition, bounds_of(consumer, topic, partition, seconds)[1])
        for topic, partition in places
    ]


def bounds_of(consumer: Consumer, topic: str, partition: int, seconds: float = CONNECT_SECONDS) -> tuple[int, int]:
    """First offset and end of a partition."""
    found = consumer.get_watermark_offsets(
        TopicPartition(topic, partition), timeout=min(seconds, CONNECT_SECONDS), cached=False
    )
    if found is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    return found


def produce(
    settings: Settings, topic: str, key: bytes | None, value: bytes | None, headers: RawHeaders, seconds: float
) -> None:
    """Write one message durably. Raises ``UserError`` where the broker has not taken it in time."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    client = producer(settings, CLI_CLIENT, logger=_silent, **{"message.timeout.ms": max(1, int(seconds * 1000))})
    # A topic with partitions that were added to it is still used as it was at init.
    known = client.list_topics(topic, timeout=min(seconds, CONNECT_SECONDS)).topics[topic]
    added = len(known.partitions or ()) > settings.partitions
    client.produce(
        topic,
        value=value,
        key=key,
        headers=list(headers),
        on_delivery=delivered,
        partition=place_of(key, settings.partitions) if added else ANY,
    )
    left = client.flush(seconds + 1)
    if failures or left:
        why = failures[0].str() if failures else "no answer"
        raise UserError(f"Kafka at {settings.bootstrap_servers()} did not take the message on {topic}: {why}")


def delete_before(settings: Settings, topic: str, ends: Mapping[int, int]) -> None:
    """Delete the records before an offset, by partition. Raises ``KafkaException`` where the broker refuses."""
    places = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
    client = admin(settings, CLI_CLIENT)  # it has to outlive what it was asked for
    for future in client.delete_records(places, request_timeout=CONNECT_SECONDS).values():
        future.result(2 * CONNECT_SECONDS)


def is_end(message: KafkaMessage) -> bool:
    """Whether this says that the partition holds nothing more for now."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def content(message: KafkaMessage | None) -> KafkaMessage | None:
    """What was polled, where it is a message. Raises ``KafkaException`` for an error that is more than an end."""
    if message is None:
        return None
    error = message.error()
    if error is None:
        return message
    # Lost connections mend themselves; what waits here has its own time limit.
    if is_end(message) or error.retriable() or error.code() in _PASSING:
        return None
    raise KafkaException(error)


_PASSING = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
