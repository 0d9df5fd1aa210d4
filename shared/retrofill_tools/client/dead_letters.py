"""Dead letters: messages that no service could handle, as they are on their topic."""

from __future__ import annotations

import base64
import codecs
import heapq
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from retrofill.errors import UserError, WrongUsage
from retrofill_core.bus.envelope import DEAD_LETTER_PREFIX, read_headers
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Topic
from retrofill_core.settings import Settings
from retrofill_tools.client.kafka import (
    ANSWERS_ON,
    CONNECT_SECONDS,
    Event,
    bounds_of,
    content,
    is_end,
    partitions_of,
    produce,
    publish_and_wait,
    reading_topics,
)

PLACE = re.compile(r"(\d{1,9}):(\d{1,18})")
READ_SECONDS = 10.0


@dataclass(frozen=True)
class Letter:
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    raw_headers: tuple[tuple[str, bytes | None], ...]
    value_bytes: int | None = None  # the length of the value, of which this letter has only the start

    def cut(self, value_bytes: int | None) -> Letter:
        """The letter with the first ``value_bytes`` of its value."""
        if value_bytes is None or self.value is None or len(self.value) <= value_bytes:
            return self
        return replace(self, value=self.value[:value_bytes], value_bytes=len(self.value))

    @property
    def place(self) -> str:
        """Its place on the topic, as the argument of ``replay``: ``partition:offset``."""
        return f"{self.partition}:{self.offset}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that are valid text."""
        return read_headers(self.raw_headers)[0]

    def ours(self, name: str) -> str | None:
        """A header that the refusing service added, by its name without the prefix."""
        return self.headers.get(DEAD_LETTER_PREFIX + name)

    @property
    def original_headers(self) -> list[tuple[str, str | bytes | None]]:
        """The headers of the original message."""
        return [(name, value) for name, value in self.raw_headers if not name.startswith(DEAD_LETTER_PREFIX)]

    def as_json(self) -> dict[str, Any]:
        """The letter for scripts; keys and values that are not UTF-8 are base64."""
        ours = {
            name[len(DEAD_LETTER_PREFIX) :]: value
            for name, value in self.headers.items()
            if name.startswith(DEAD_LETTER_PREFIX)
        }
        return {
            "place": self.place,
            "at": datetime.fromtimestamp(self.timestamp_ms / 1000, UTC),
            **ours,
            "headers": {name: value for name, value in self.headers.items() if not name.startswith(DEAD_LETTER_PREFIX)},
            **_bytes_as_json("key", self.key),
            **_bytes_as_json("value", self.value, cut=self.value_bytes is not None),
            **({} if self.value_bytes is None else {"value_bytes": self.value_bytes}),
        }


def _bytes_as_json(name: str, data: bytes | None, *, cut: bool = False) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        # The end of what is cut may be half a character.
        return {name: codecs.getincrementaldecoder("utf-8")().decode(data, final=not cut)}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def newest(consumer: Consumer, topic: str, limit: int, value_bytes: int | None = None) -> list[Letter]:
    """The last ``limit`` dead letters, newest first; of longer values only the first ``value_bytes``.

    Holds no more than these.
    """
    kept: list[tuple[int, int, int, Letter]] = []  # a heap, the oldest first
    for partition in partitions_of(consumer, topic):
        first, end = bounds_of(consumer, topic, partition)
        # Transaction markers occupy offsets too, hence twice the limit.
        for letter in read_range(consumer, topic, partition, max(first, end - 2 * limit), end):
            push = heapq.heappush if len(kept) < limit else heapq.heappushpop
            push(kept, (letter.timestamp_ms, partition, letter.offset, letter.cut(value_bytes)))
    return [letter for *_, letter in sorted(kept, reverse=True)]


def read_range(consumer: Consumer, topic: str, partition: int, start: int, end: int) -> Iterator[Letter]:
    """The letters with offsets in [``start``, ``end``)."""
    if start >= end:
        return
    consumer.assign([TopicPartition(topic, partition, start)])
    until = time.monotonic() + READ_SECONDS
    while (left := until - time.monotonic()) > 0:
        message = consumer.poll(left)
        if message is not None and is_end(message):
            return
        there = content(message)
        if there is None:
            continue
        letter = _letter(there)
        if letter.offset < end:
            yield letter
        if letter.offset >= end - 1:
            return
        until = time.monotonic() + READ_SECONDS
    raise UserError(f"Kafka did not respond within {READ_SECONDS:g} s while reading {topic}")


def _letter(message: KafkaMessage) -> Letter:
    return Letter(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        raw_headers=tuple(message.headers() or ()),  # type: ignore[arg-type]
    )


def find_letter(settings: Settings, place: str) -> Letter:
    """The letter at ``partition:offset``. Raises ``UserError``."""
    match = PLACE.fullmatch(place)
    if match is None:
        raise WrongUsage(f"invalid place {place!r}: use PARTITION:OFFSET, as 'retrofill dead-letters list' prints it")
    partition, offset = int(match[1]), int(match[2])
    topic = settings.topic_prefix + Topic.DEAD_LETTERS
    with reading_topics(settings) as consumer:
        if partition in partitions_of(consumer, topic):
            first, end = bounds_of(consumer, topic, partition)
            if first <= offset < end:
                for letter in read_range(consumer, topic, partition, offset, offset + 1):
                    return letter
    raise UserError(f"there is no dead letter at {place}: retrofill dead-letters list")


def origin_of(letter: Letter) -> Topic:
    """The letter's original topic. Raises ``UserError`` if it cannot be republished."""
    cut = [name for name in ("key_sha256", "value_sha256", "headers_dropped") if letter.ours(name) is not None]
    if cut:
        part = cut[0].replace("_sha256", "").replace("_dropped", "")
        raise UserError(
            f"dead letter {letter.place} holds only the start of a message (cut: {part}): it was too large to keep"
        )
    name = letter.ours("origin_topic")
    if name is None or name not in set(Topic) or name == Topic.DEAD_LETTERS:
        raise UserError(f"dead letter {letter.place} does not name the topic it came from (its header: {name!r})")
    return Topic(name)


def republish(settings: Settings, letter: Letter, topic: Topic, seconds: float) -> Message | None:
    """Publish the letter.

    Returns the reply, if the topic has replies and the letter has a key and an id.
    """
    ce_id = letter.headers.get("ce_id")
    if topic in ANSWERS_ON and letter.key and ce_id:
        name = letter.headers.get("ce_type", "the message")
        event = Event(topic, letter.key, letter.value, letter.original_headers, ce_id, name)
        return publish_and_wait(settings, event, seconds)
    full_name = settings.topic_prefix + topic
    produce(settings, full_name, letter.key, letter.value, letter.original_headers, min(seconds, CONNECT_SECONDS))
    return None
