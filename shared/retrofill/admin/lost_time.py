"""What Kafka shows of the time that Postgres has lost: which attempts were given out, and which events were published.

All of that time is behind the offsets that Postgres has: its services read on from there, and so does this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from retrofill.bus.clients import producer, reader
from retrofill.bus.relay.cursor import TAKEN_KEY, read_cursor
from retrofill.contract.topics import Service
from retrofill.settings import Settings

KAFKA_SECONDS = 30.0
# (topic without prefix, partition) → offset.
Offsets = dict[tuple[str, int], int]


@dataclass
class Seen:
    """Of runs by id: the highest attempt, and the highest publication. ``ends``: up to where was read."""

    attempts: dict[int, int] = field(default_factory=dict)
    publications: dict[int, int] = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)

    def add(self, value: bytes | None) -> None:
        """A message on ``run-reports`` or ``run-events``; what is none of ours says nothing."""
        try:
            body = json.loads(value or b"null")
        except ValueError:
            return
        if not isinstance(body, dict):
            return
        run, attempt, publication = body.get("run_id"), body.get("attempt"), body.get("publication", 0)
        if isinstance(run, int) and isinstance(attempt, int) and isinstance(publication, int):
            self.attempts[run] = max(attempt, self.attempts.get(run, 0))
            self.publications[run] = max(publication, self.publications.get(run, 0))


def read_attempts(settings: Settings, starts: Offsets) -> Seen:
    """From these offsets of ``run-reports`` and ``run-events`` to their ends now. Raises ``KafkaException``."""
    seen = Seen()

    def take(_: str, message: Message) -> None:
        seen.add(message.value())

    seen.ends = _read(settings, starts, take)
    return seen


def read_ids(settings: Settings, topics: Iterable[str], since_ms: int) -> dict[str, set[bytes]]:
    """``identity`` of all messages on ``topics`` that were published since then, by topic. Raises ``KafkaException``."""
    found: dict[str, set[bytes]] = {topic: set() for topic in topics}

    def take(topic: str, message: Message) -> None:
        found[topic].add(identity(message.key(), message.value(), dict(message.headers() or ()).get("ce_id")))

    with _reader(settings) as consumer:
        asked = [
            TopicPartition(settings.topic_prefix + topic, p, since_ms)
            for topic in found
            for p in range(settings.partitions)
        ]
        starts = {
            (tp.topic.removeprefix(settings.topic_prefix), tp.partition): tp.offset
            for tp in consumer.offsets_for_times(asked, timeout=KAFKA_SECONDS)
            # Less than 0: nothing was published since then.
            if tp.offset >= 0
        }
    _read(settings, starts, take)
    return found


def identity(key: bytes | None, value: bytes | None, ce_id: bytes | str | None) -> bytes:
    """What tells one message from another: its ``ce_id``, or all of it where it has none."""
    if ce_id:
        return ce_id.encode() if isinstance(ce_id, str) else ce_id
    return b"\0".join((key or b"", value or b""))


def fence(settings: Settings, service: Service, epoch: int) -> int:
    """End whatever the service's relays have open, say on its cursor topic that ``epoch`` took over, and read the cursor.

    From here on Kafka remembers ``epoch``, whatever becomes of Postgres. Raises ``KafkaException``.
    """
    topic = service.cursor_topic(settings.topic_prefix)
    transactional_id = f"{service.group(settings.topic_prefix)}-relay"
    # It waits for the end of an open transaction by itself: on a terminal that is nobody's concern.
    client = producer(settings, "retrofill-recover", **{"transactional.id": transactional_id, "log_level": 2})
    mark = str(epoch).encode()
    client.init_transactions(KAFKA_SECONDS)
    client.begin_transaction()
    client.produce(topic, key=TAKEN_KEY, value=mark)
    client.flush(KAFKA_SECONDS)
    client.commit_transaction(KAFKA_SECONDS)
    return read_cursor(settings, topic, "retrofill-recover", mark)


class _reader:
    """A consumer that is closed afterwards."""

    def __init__(self, settings: Settings) -> None:
        self._consumer = reader(settings, "retrofill-recover")

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def _read(settings: Settings, starts: Mapping[tuple[str, int], int], take: Callable[[str, Message], None]) -> Offsets:
    """Everything from ``starts`` to the ends now; what was deleted before it could be read is left out."""
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
