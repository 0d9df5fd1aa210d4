"""Evidence in Kafka of lost commits: which runs began and were published, which events published.

It reads from the offsets stored in Postgres: everything lost is after them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from retrofill_core.bus.clients import producer, reader
from retrofill_core.bus.relay.cursor import CURSOR_PARTITION, TAKEN_KEY, read_cursor
from retrofill_core.contract.partitioning import ANY
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings

KAFKA_SECONDS = 30.0
# (topic without prefix, partition) → offset.
Offsets = dict[tuple[str, int], int]


@dataclass
class Seen:
    """The highest attempt and publication by run id, and the offsets up to which Kafka was read."""

    attempts: dict[int, int] = field(default_factory=dict)
    publications: dict[int, int] = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)

    def add(self, value: bytes | None) -> None:
        """Add a message of ``run-reports`` or ``run-events``. Undecodable ones are ignored."""
        try:
            body = json.loads(value or b"null")
        except ValueError:
            return
        if not isinstance(body, dict):
            return
        run, attempt, publication = body.get("run_id"), body.get("attempt", 0), body.get("publication", 0)
        if isinstance(run, int) and isinstance(attempt, int) and isinstance(publication, int):
            self.attempts[run] = max(attempt, self.attempts.get(run, 0))
            self.publications[run] = max(publication, self.publications.get(run, 0))


def read_runs(settings: Settings, starts: Offsets) -> Seen:
    """Read ``run-reports`` and ``run-events`` from ``starts`` to their current ends.

    Raises ``KafkaException``.
    """
    seen = Seen()

    def take(_: str, message: Message) -> None:
        seen.add(message.value())

    seen.ends = _read(settings, starts, take)
    return seen


def read_ids(settings: Settings, topics: Iterable[str], since_ms: int) -> dict[str, set[bytes]]:
    """``identity`` of all messages published since ``since_ms``, by topic.

    Raises ``KafkaException``.
    """
    found: dict[str, set[bytes]] = {topic: set() for topic in topics}

    def take(topic: str, message: Message) -> None:
        ce_id = dict(message.headers() or ()).get("ce_id")
        found[topic].add(identity(message.partition() or 0, message.key(), message.value(), ce_id))

    with _reader(settings) as consumer:
        places = [
            TopicPartition(settings.topic_prefix + topic, p, since_ms)
            for topic in found
            for p in range(settings.partitions)
        ]
        starts = {
            (tp.topic.removeprefix(settings.topic_prefix), tp.partition): tp.offset
            for tp in consumer.offsets_for_times(places, timeout=KAFKA_SECONDS)
            # Negative: nothing was published since.
            if tp.offset >= 0
        }
    _read(settings, starts, take)
    return found


def identity(partition: int, key: bytes | None, value: bytes | None, ce_id: bytes | str | None) -> bytes:
    """Identifies a message: its partition, if it has a key, its key, and its ``ce_id``, or value if it has none.

    The ``ce_id`` is not enough: a request without a key, or on a wrong partition, has that of its republished copy.
    """
    place = str(partition if key else ANY).encode()
    id = ce_id.encode() if isinstance(ce_id, str) else ce_id
    return b"\0".join((place, key or b"", id or value or b""))


def fence(settings: Settings, service: Service, epoch: int) -> int:
    """Fence the service's relays, write ``epoch`` to the cursor topic, and return the cursor.

    From here on Kafka stores ``epoch``, whatever happens to Postgres. Raises ``KafkaException``.
    """
    topic = service.cursor_topic(settings.topic_prefix)
    # librdkafka logs that it waits for an open transaction, which means nothing to a user.
    # All ids: the older Postgres may not know which of them the relay used last.
    for id in service.transactional_ids(settings.topic_prefix):
        client = producer(settings, "retrofill-recover", **{"transactional.id": id, "log_level": 2})
        client.init_transactions(KAFKA_SECONDS)
    mark = str(epoch).encode()
    client.begin_transaction()
    client.produce(topic, key=TAKEN_KEY, value=mark, partition=CURSOR_PARTITION)
    client.flush(KAFKA_SECONDS)
    client.commit_transaction(KAFKA_SECONDS)
    return read_cursor(settings, topic, "retrofill-recover", mark)


def _reader(settings: Settings) -> closing[Consumer]:
    return closing(reader(settings, "retrofill-recover"))


def _read(settings: Settings, starts: Mapping[tuple[str, int], int], take: Callable[[str, Message], None]) -> Offsets:
    """Read from ``starts`` to the current ends, which it returns. Deleted records are skipped."""
    prefix = settings.topic_prefix
    ends: Offsets = {}
    with _reader(settings) as consumer:
        places = []
        for (topic, partition), start in starts.items():
            low, high = consumer.get_watermark_offsets(TopicPartition(prefix + topic, partition), KAFKA_SECONDS)
            ends[topic, partition] = max(start, high)
            places.append(TopicPartition(prefix + topic, partition, min(max(low, start), high)))
        consumer.assign(places)
        left = set(starts)
        while left:
            message = consumer.poll(KAFKA_SECONDS)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            error = message.error()
            place = ((message.topic() or "").removeprefix(prefix), message.partition() or 0)
            if error is None:
                take(place[0], message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(place)
            else:
                raise KafkaException(error)
    return ends
