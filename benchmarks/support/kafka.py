"""The bare Kafka peer of the bus: same broker, client and settings."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from tests.support.installation import Installation

from retrofill_core.bus.clients import admin, producer, reader
from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.settings import Settings

SECONDS = 60.0


class BareTopic:
    """A topic with a transactional producer and a ``read_committed`` subscriber at its end."""

    def __init__(self, made: Installation, partitions: int = 1) -> None:
        self._made = made
        self._partitions = range(partitions)
        self.topic = f"{made.settings.topic_prefix}bare-{uuid.uuid4().hex[:6]}"
        client = admin(made.settings, "bare")
        for answer in client.create_topics([NewTopic(self.topic, partitions, 1)]).values():
            answer.result(SECONDS)
        self.subscriber: Consumer = reader(made.settings, "bare", **{"fetch.wait.max.ms": 5})
        self.subscriber.assign([TopicPartition(self.topic, p, 0) for p in self._partitions])
        self._sender: Producer = producer(made.settings, "bare", **{"transactional.id": self.topic, "linger.ms": 1})
        self._sender.init_transactions(SECONDS)
        self.round_trip()

    def round_trip(self) -> float:
        """Seconds to publish one message per partition in a transaction and read them."""
        began = time.monotonic()
        self._sender.begin_transaction()
        for partition in self._partitions:
            self._sender.produce(self.topic, key=b"k", value=b"v", partition=partition)
        self._sender.commit_transaction(SECONDS)
        read(self.subscriber, len(self._partitions))
        return time.monotonic() - began

    def transactional(self, values: Sequence[bytes], batch: int) -> float:
        """Seconds until ``values`` are read, published in transactions of ``batch``."""
        began = time.monotonic()
        for start in range(0, len(values), batch):
            self._sender.begin_transaction()
            _produce(self._sender, self.topic, values[start : start + batch])
            self._sender.commit_transaction(SECONDS)
        read(self.subscriber, len(values))
        return time.monotonic() - began

    def idempotent(self, values: Sequence[bytes]) -> float:
        """Seconds until ``values`` are read, published without transactions."""
        sender = producer(self._made.settings, "bare-idempotent", **{"linger.ms": 1})
        began = time.monotonic()
        _produce(sender, self.topic, values)
        assert sender.flush(SECONDS) == 0
        read(self.subscriber, len(values))
        return time.monotonic() - began


def _produce(sender: Producer, topic: str, values: Sequence[bytes]) -> None:
    for value in values:
        while True:
            try:
                sender.produce(topic, key=b"k", value=value)
                break
            except BufferError:
                sender.poll(0.05)


def read(subscriber: Consumer, count: int) -> list[bytes]:
    """Read ``count`` messages."""
    values: list[bytes] = []
    while len(values) < count:
        messages = subscriber.consume(min(1000, count - len(values)), SECONDS)
        assert messages, f"{count - len(values)} of {count} are missing"
        values += [message.value() or b"" for message in messages if message.error() is None]
    return values


def at_end(settings: Settings, topic: Topic, partitions: Sequence[int]) -> Consumer:
    """A ``read_committed`` subscriber positioned at the end of these partitions."""
    name = f"{settings.topic_prefix}{topic}"
    consumer = reader(settings, f"bench-{uuid.uuid4().hex[:6]}", **{"fetch.wait.max.ms": 5})
    ends = [consumer.get_watermark_offsets(TopicPartition(name, p))[1] for p in partitions]
    consumer.assign([TopicPartition(name, p, end) for p, end in zip(partitions, ends, strict=True)])
    return consumer


def ask(settings: Settings, sender: Producer, id: str, body: BackfillRequested) -> None:
    """Publish a backfill request; returns once Kafka has it."""
    topic = f"{settings.topic_prefix}{Topic.BACKFILL_REQUESTS}"
    sender.produce(topic, key=id, value=body.encode(), headers=wire_headers(headers_of(body, "bench")))
    sender.flush()
