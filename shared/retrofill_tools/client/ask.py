"""Publish a request and wait for the reply. Every command that changes something uses this."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Consumer
from confluent_kafka import Message as KafkaMessage

from retrofill.errors import UserError, WrongUsage
from retrofill_core.bus.dead_letters import PREFIX
from retrofill_core.bus.envelope import headers_of, read_headers, wire_headers
from retrofill_core.contract.base import Message, Undecodable, decode
from retrofill_core.contract.topics import CLI_CLIENT, SERVICES, Topic
from retrofill_core.settings import Settings
from retrofill_tools.client.kafka import POLL_SECONDS, RawHeaders, content, ends_of, homes_of, produce, reading_topics

# Topic of the replies to messages on a topic. A reply has the same key.
ANSWERS_ON = {
    Topic.PIPELINES: Topic.PIPELINE_EVENTS,
    Topic.BACKFILL_REQUESTS: Topic.BACKFILL_EVENTS,
    Topic.CALLBACK_REQUESTS: Topic.CALLBACK_EVENTS,
}


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


def ask(settings: Settings, topic: Topic, key: str, message: Message, seconds: float) -> Message:
    """Publish ``message`` under ``key`` and return the reply.

    Raises as ``publish_and_wait`` does.
    """
    headers = headers_of(message, CLI_CLIENT)
    try:
        body, key_bytes = message.encode(), key.encode()
    except ValueError as e:  # an unpaired surrogate
        raise WrongUsage(f"this cannot be sent as UTF-8: {e}") from e
    event = Event(topic, key_bytes, body, wire_headers(headers), headers["ce_id"], message.type)
    return publish_and_wait(settings, event, seconds)


def publish_and_wait(settings: Settings, event: Event, seconds: float) -> Message:
    """Publish ``event`` and return the reply. Raises ``UserError`` for a dead letter, ``NoAnswer`` after a timeout.

    The partitions' end offsets are read before publishing, so no reply is missed.
    """
    until = time.monotonic() + seconds
    with reading_topics(settings) as consumer:
        _listen(consumer, settings, event, seconds)
        produce(settings, settings.topic_prefix + event.topic, event.key, event.value, event.headers, seconds)
        answer = _wait(consumer, settings.topic_prefix, event, until)
    if answer is None:
        reader = next(service.name for service in SERVICES.values() if event.topic in service.reads)
        raise NoAnswer(
            f"no answer to {event.name} within {seconds:g} s: does the {reader} run (retrofill status)? "
            f"The message is published under the key {event.key.decode()} and counts once a {reader} reads it"
        )
    return answer


def _listen(consumer: Consumer, settings: Settings, event: Event, seconds: float) -> None:
    """Assign the partitions of the reply and of a dead letter, at their ends.

    Both have the event's key.
    """
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
    except Undecodable:  # not ours, or from a newer version
        return None
    return found if found.in_reply_to == ce_id else None


def _refuse_if_dead(message: KafkaMessage, event: Event) -> None:
    headers, _ = read_headers(message.headers())  # type: ignore[arg-type]
    if headers.get("ce_id") == event.ce_id:
        place = f"{message.partition()}:{message.offset()}"
        raise UserError(f"{headers.get(PREFIX + 'reason', 'refused')} (dead letter {place})")
