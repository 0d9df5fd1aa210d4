"""Publish an event and wait for its answer: how every command changes something."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Consumer
from confluent_kafka import Message as KafkaMessage

from retrofill.bus.dead_letters import PREFIX
from retrofill.bus.envelope import headers_of, read_headers, wire_headers
from retrofill.client.kafka import RawHeaders, content, ends_of, homes_of, produce, reading_topics
from retrofill.contract.base import Message, Undecodable, decode
from retrofill.contract.topics import CLI_CLIENT, SERVICES, Topic
from retrofill.errors import UserError, WrongUsage
from retrofill.settings import Settings

# Where the answer to a message on a topic is published, under the same key.
ANSWERS_ON = {
    Topic.PIPELINES: Topic.PIPELINE_EVENTS,
    Topic.BACKFILL_REQUESTS: Topic.BACKFILL_EVENTS,
    Topic.CALLBACK_REQUESTS: Topic.CALLBACK_EVENTS,
}
POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Event:
    """What is to be published, complete."""

    topic: Topic
    key: bytes
    value: bytes | None
    headers: RawHeaders
    ce_id: str
    name: str


def ask(settings: Settings, topic: Topic, key: str, message: Message, seconds: float) -> Message:
    """Publish ``message`` under ``key`` and return its answer."""
    headers = headers_of(message, CLI_CLIENT)
    try:
        body, key_bytes = message.encode(), key.encode()
    except ValueError as e:  # half a character
        raise WrongUsage(f"this cannot be sent as UTF-8: {e}") from e
    event = Event(topic, key_bytes, body, wire_headers(headers), headers["ce_id"], message.type)
    return publish_and_wait(settings, event, seconds)


def publish_and_wait(settings: Settings, event: Event, seconds: float) -> Message:
    """Publish ``event`` and return its answer. Raises ``UserError`` for a dead letter, and when the time is over.

    The ends of the partitions are read before publishing, so that no answer can come too early to be seen.
    """
    until = time.monotonic() + seconds
    with reading_topics(settings) as consumer:
        _listen(consumer, settings, event, seconds)
        produce(settings, settings.topic_prefix + event.topic, event.key, event.value, event.headers, seconds)
        answer = _wait(consumer, settings.topic_prefix, event, until)
    if answer is None:
        reader = next(service.name for service in SERVICES.values() if event.topic in service.reads)
        raise UserError(
            f"no answer to {event.name} within {seconds:g} s: does the {reader} run (retrofill status)? "
            f"The message is published under the key {event.key.decode()} and counts once a {reader} reads it"
        )
    return answer


def _listen(consumer: Consumer, settings: Settings, event: Event, seconds: float) -> None:
    """Stand at the end of the partition of the answer and of that of the dead letter, which have the event's key."""
    places = []
    for topic in (ANSWERS_ON[event.topic], Topic.DEAD_LETTERS):
        places += homes_of(settings, consumer, settings.topic_prefix + topic, event.key, seconds)
    consumer.assign(ends_of(consumer, places, seconds))


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
    except Undecodable:  # somebody else's, or of a newer version: not the one waited for
        return None
    return found if found.in_reply_to == ce_id else None


def _refuse_if_dead(message: KafkaMessage, event: Event) -> None:
    headers, _ = read_headers(message.headers())  # type: ignore[arg-type]
    if headers.get("ce_id") == event.ce_id:
        place = f"{message.partition()}:{message.offset()}"
        raise UserError(f"{headers.get(PREFIX + 'reason', 'refused')} (dead letter {place})")
