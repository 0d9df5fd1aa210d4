"""Kafka for programs: reads of committed messages, durable writes, and requests with their replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from retrofill.errors import UserError, WrongUsage
from retrofill_core.bus.clients import admin, producer, reader
from retrofill_core.bus.envelope import DEAD_LETTER_PREFIX, headers_of, new_headers, read_headers, wire_headers
from retrofill_core.contract.backfills import BackfillRejected, BackfillRequested
from retrofill_core.contract.base import Message, Undecodable, decode, decode_object
from retrofill_core.contract.topics import ANY, CLI_CLIENT, SERVICES, Topic, partition_of, place_of
from retrofill_core.domain.planning import with_secret
from retrofill_core.settings import Settings

# The client library logs connection errors; commands report them in their one-line message instead.
_silent = logging.Logger("librdkafka-of-the-cli", logging.CRITICAL + 1)
CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.25
RawHeaders = Sequence[tuple[str, str | bytes | None]]
_PASSING = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
# Topic of the replies to messages on a topic. A reply has the same key.
ANSWERS_ON = {
    Topic.PIPELINES: Topic.PIPELINE_EVENTS,
    Topic.BACKFILL_REQUESTS: Topic.BACKFILL_EVENTS,
    Topic.CALLBACK_REQUESTS: Topic.CALLBACK_EVENTS,
}


@contextmanager
def reading_topics(settings: Settings) -> Iterator[Consumer]:
    """A consumer without a group; it commits nothing."""
    consumer = reader(settings, CLI_CLIENT, logger=_silent)
    try:
        yield consumer
    finally:
        consumer.close()


def partitions_of(consumer: Consumer, topic: str, seconds: float = CONNECT_SECONDS) -> list[int]:
    """The partitions of a topic (full name).

    Raises ``UserError`` if the broker does not know it.
    """
    known = consumer.list_topics(topic, timeout=min(seconds, CONNECT_SECONDS)).topics[topic]
    if known.error is not None or not known.partitions:
        raise UserError(f"Kafka has no topic {topic}: is RETROFILL_TOPIC_PREFIX right, and was everything set up?")
    return sorted(known.partitions)


def homes_of(
    settings: Settings, consumer: Consumer, topic: str, key: bytes, seconds: float = CONNECT_SECONDS
) -> list[tuple[str, int]]:
    """The (topic, partition) pairs where services may publish ``key`` on a topic (full name).

    If the topic has another number of partitions than the settings, that is all of them:
    the reader's settings may differ from the number fixed at init.
    """
    known = partitions_of(consumer, topic, seconds)
    fixed = len(known) == settings.partitions
    return [(topic, p) for p in ([partition_of(key, len(known))] if fixed else known)]


def ends_of(
    consumer: Consumer, places: Sequence[tuple[str, int]], seconds: float = CONNECT_SECONDS
) -> list[TopicPartition]:
    """The current end offset of each (topic, partition)."""
    return [
        TopicPartition(topic, partition, bounds_of(consumer, topic, partition, seconds)[1])
        for topic, partition in places
    ]


# Right after a broker's start, or while it hands a partition over: the client asks for the leader by itself.
_MOVING = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
_AGAIN_SECONDS = 0.1


def bounds_of(consumer: Consumer, topic: str, partition: int, seconds: float = CONNECT_SECONDS) -> tuple[int, int]:
    """First offset and end offset of a partition; waits for its leader. Raises ``KafkaException``, also on timeout."""
    until = time.monotonic() + min(seconds, CONNECT_SECONDS)
    while True:
        left = until - time.monotonic()
        try:
            found = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=max(left, 0.0), cached=False
            )
        except KafkaException as e:
            if e.args[0].code() not in _MOVING or left < _AGAIN_SECONDS:
                raise
            time.sleep(_AGAIN_SECONDS)
            continue
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found


def listen(
    settings: Settings, consumer: Consumer, key: bytes, topics: Sequence[Topic], seconds: float = CONNECT_SECONDS
) -> None:
    """Assign the partitions of topics where messages with this key may come, at their ends."""
    places = []
    for topic in topics:
        places += homes_of(settings, consumer, settings.topic_prefix + topic, key, seconds)
    consumer.assign(ends_of(consumer, places, seconds))


def produce(
    settings: Settings, topic: str, key: bytes | None, value: bytes | None, headers: RawHeaders, seconds: float
) -> None:
    """Write one message durably.

    Raises ``UserError`` if the broker does not acknowledge it in time.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    client = producer(settings, CLI_CLIENT, logger=_silent, **{"message.timeout.ms": max(1, int(seconds * 1000))})
    # Partitions added after init are not used.
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
        raise UserError(f"Kafka at {settings.bootstrap_servers()} did not accept the message on {topic}: {why}")


def follow(settings: Settings, topic: Topic, *, from_beginning: bool) -> Iterator[dict[str, Any]]:
    """Yield the topic's committed events as JSON objects, endlessly: new ones, or all."""
    name = settings.topic_prefix + topic
    with reading_topics(settings) as consumer:
        partitions = partitions_of(consumer, name)
        if from_beginning:
            consumer.assign([TopicPartition(name, partition, 0) for partition in partitions])
        else:
            consumer.assign(ends_of(consumer, [(name, partition) for partition in partitions]))
        while True:
            message = content(consumer.poll(POLL_SECONDS))
            if message is None:
                continue
            try:
                yield decode_object(message.value() or b"")
            except Undecodable:  # another producer's message
                continue


def delete_before(settings: Settings, topic: str, ends: Mapping[int, int]) -> None:
    """Delete the records before an offset, by partition.

    Raises ``KafkaException`` if the broker refuses.
    """
    places = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
    client = admin(settings, CLI_CLIENT)  # must outlive its futures
    for future in client.delete_records(places, request_timeout=CONNECT_SECONDS).values():
        future.result(2 * CONNECT_SECONDS)


def is_end(message: KafkaMessage) -> bool:
    """Whether this is the end-of-partition marker."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def content(message: KafkaMessage | None) -> KafkaMessage | None:
    """The polled message, or ``None`` if there is none or the error is transient.

    Raises ``KafkaException``.
    """
    if message is None:
        return None
    error = message.error()
    if error is None:
        return message
    # The client reconnects by itself, and callers have their own time limits.
    if is_end(message) or error.retriable() or error.code() in _PASSING:
        return None
    raise KafkaException(error)


class NoAnswer(UserError):
    """No reply came in time. The message is published, and counts once it is read."""


@dataclass(frozen=True)
class Event:
    """A message to publish; ``name`` is its type, for error messages."""

    topic: Topic
    key: bytes
    value: bytes | None
    headers: RawHeaders
    ce_id: str
    name: str


def is_refusal(reply: Message) -> bool:
    """Whether a service refuses what was requested: all such replies are named alike."""
    return reply.type.endswith("Rejected")


def ask(settings: Settings, topic: Topic, key: str, message: Message, seconds: float) -> Message:
    """Publish ``message`` under ``key`` and return the reply. A request with a secret is refused here: Kafka keeps the others.

    Raises as ``publish_and_wait`` does.
    """
    if isinstance(message, BackfillRequested) and (refused := with_secret(message.conf)) is not None:
        return BackfillRejected(
            backfill_id=key, pipeline=message.pipeline, reason=refused.reason, message=refused.message
        )
    headers = headers_of(message, CLI_CLIENT)
    try:
        body, key_bytes = message.encode(), key.encode()
    except ValueError as e:  # an unpaired surrogate
        raise WrongUsage(f"this cannot be sent as UTF-8: {e}") from e
    event = Event(topic, key_bytes, body, wire_headers(headers), headers["ce_id"], message.type)
    return publish_and_wait(settings, event, seconds)


def remove_pipeline(settings: Settings, name: str, seconds: float) -> Message:
    """Publish the null value that removes a pipeline, and return the reply. Raises as ``publish_and_wait`` does."""
    headers = new_headers("PipelineRemoved", CLI_CLIENT)
    what = f"the removal of pipeline {name}"
    event = Event(Topic.PIPELINES, name.encode(), None, wire_headers(headers), headers["ce_id"], what)
    return publish_and_wait(settings, event, seconds)


def publish_and_wait(settings: Settings, event: Event, seconds: float) -> Message:
    """Publish ``event`` and return the reply. Raises ``UserError`` for a dead letter, ``NoAnswer`` after a timeout.

    The partitions' end offsets are read before publishing, so no reply is missed.
    """
    until = time.monotonic() + seconds
    with reading_topics(settings) as consumer:
        listen(settings, consumer, event.key, (ANSWERS_ON[event.topic], Topic.DEAD_LETTERS), seconds)
        produce(settings, settings.topic_prefix + event.topic, event.key, event.value, event.headers, seconds)
        answer = _wait(consumer, settings.topic_prefix, event, until)
    if answer is None:
        reader = next(service.name for service in SERVICES.values() if event.topic in service.reads)
        raise NoAnswer(
            f"no reply to {event.name} within {seconds:g} s: is the {reader} running (retrofill status)? "
            f"The message is published under the key {event.key.decode()} and counts once a {reader} reads it"
        )
    return answer


def _wait(consumer: Consumer, prefix: str, event: Event, until: float) -> Message | None:
    while (left := until - time.monotonic()) > 0:
        message = content(consumer.poll(min(left, POLL_SECONDS)))
        if message is None or message.key() != event.key:
            continue
        if message.topic() == prefix + Topic.DEAD_LETTERS:
            _refuse_if_dead(message, event)
        elif (answer := _answer(message, event.ce_id)) is not None:
            return answer
    return None


def _answer(message: KafkaMessage, ce_id: str) -> Message | None:
    try:
        found = decode(message.value())
    except Undecodable:  # not ours, or from a newer version
        return None
    return found if found.in_reply_to == ce_id else None


def _refuse_if_dead(message: KafkaMessage, event: Event) -> None:
    headers, _ = read_headers(message.headers())  # type: ignore[arg-type]
    if headers.get("ce_id") == event.ce_id:
        place = f"{message.partition()}:{message.offset()}"
        raise UserError(f"{headers.get(DEAD_LETTER_PREFIX + 'reason', 'refused')} (dead letter {place})")
