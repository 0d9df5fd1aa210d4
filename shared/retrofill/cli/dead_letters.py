"""``retrofill dead-letters``: list, replay and drop messages that no service could handle."""

from __future__ import annotations

import base64
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from retrofill.bus.dead_letters import PREFIX
from retrofill.bus.envelope import read_headers
from retrofill.cli.options import ANSWER_SECONDS, AsJson, Limit, TimeLimit
from retrofill.cli.output import moment, print_json, print_text
from retrofill.client.ask import ANSWERS_ON, Event, publish_and_wait
from retrofill.client.connect import load_settings
from retrofill.client.kafka import (
    CONNECT_SECONDS,
    bounds_of,
    content,
    delete_before,
    is_end,
    partitions_of,
    produce,
    reading_topics,
)
from retrofill.contract.backfills import BackfillCommandRejected, BackfillRejected
from retrofill.contract.base import Message
from retrofill.contract.deadlines import CallbackReplayRejected
from retrofill.contract.pipelines import PipelineRejected
from retrofill.contract.topics import Topic
from retrofill.errors import UserError, WrongUsage
from retrofill.settings import Settings

group = typer.Typer(
    name="dead-letters", help="List, replay and drop messages that could not be handled.", no_args_is_help=True
)
PLACE = re.compile(r"(\d{1,9}):(\d{1,18})")
READ_SECONDS = 10.0


def register(app: typer.Typer) -> None:
    app.add_typer(group)


@dataclass(frozen=True)
class Letter:
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    raw_headers: tuple[tuple[str, bytes | None], ...]

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
        return self.headers.get(PREFIX + name)

    @property
    def original_headers(self) -> list[tuple[str, str | bytes | None]]:
        """The headers of the original message."""
        return [(name, value) for name, value in self.raw_headers if not name.startswith(PREFIX)]

    def as_json(self) -> dict[str, Any]:
        """The letter for scripts; keys and values that are not UTF-8 are base64."""
        ours = {name[len(PREFIX) :]: value for name, value in self.headers.items() if name.startswith(PREFIX)}
        return {
            "place": self.place,
            "at": datetime.fromtimestamp(self.timestamp_ms / 1000, UTC),
            **ours,
            "headers": {name: value for name, value in self.headers.items() if not name.startswith(PREFIX)},
            **_bytes_as_json("key", self.key),
            **_bytes_as_json("value", self.value),
        }


def _bytes_as_json(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


@group.command("list")
def list_(limit: Limit = 50, as_json: AsJson = False) -> None:
    """List dead letters, newest first."""
    settings = load_settings()
    with reading_topics(settings) as consumer:
        letters = newest(consumer, settings.topic_prefix + Topic.DEAD_LETTERS, limit)
    if as_json:
        return print_json([letter.as_json() for letter in letters])
    return _print_letters(letters)


def _print_letters(letters: Sequence[Letter]) -> None:
    """Two lines per letter: its place and key, and why it was refused."""
    if not letters:
        print_text("no dead letters")
    for letter in letters:
        at = moment(datetime.fromtimestamp(letter.timestamp_ms // 1000, UTC))
        key = "–" if letter.key is None else letter.key.decode("utf-8", "replace")
        print_text(f"{letter.place}  {at} UTC  {letter.ours('origin_topic')}  {key[:80]}")
        print_text(f"    {letter.ours('reason')}")


def newest(consumer: Consumer, topic: str, limit: int) -> list[Letter]:
    """The last ``limit`` dead letters, newest first."""
    found: list[Letter] = []
    for partition in partitions_of(consumer, topic):
        first, end = bounds_of(consumer, topic, partition)
        # Transaction markers occupy offsets too, hence twice the limit.
        found += read_range(consumer, topic, partition, max(first, end - 2 * limit), end)
    found.sort(key=lambda letter: letter.timestamp_ms, reverse=True)
    return found[:limit]


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


@group.command()
def replay(
    place: Annotated[str, typer.Argument(metavar="P:O", help="The letter's place, as 'list' prints it.")],
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Republish a dead letter unchanged to its original topic, and wait for the reply, if any."""
    settings = load_settings()
    letter = find_letter(settings, place)
    topic = origin_of(letter)
    answer = republish(settings, letter, topic, timeout)
    if as_json:
        answered = None if answer is None else answer.model_dump(mode="json", by_alias=True, exclude_none=True)
        print_json({"place": place, "topic": settings.topic_prefix + topic, "answer": answered})
    else:
        print_text(f"published again on {settings.topic_prefix}{topic}{f': {answer.type}' if answer else ''}")
    if isinstance(answer, BackfillRejected | BackfillCommandRejected | PipelineRejected | CallbackReplayRejected):
        raise UserError(answer.message)


@group.command()
def drop(
    place: Annotated[
        str | None,
        typer.Argument(metavar="[P:O]", help="The last letter to drop; earlier ones in its partition are dropped too."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Drop all current letters of all partitions.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters: P:O and all before it in its partition, or all.

    Kafka can only delete the beginning of a partition, not single messages. Shows the number of
    letters and asks for confirmation. This cannot be undone. Only the dead-letter topic is changed.
    """
    if (place is None) != everything:
        raise WrongUsage("give the last letter to drop, as 'retrofill dead-letters list' prints it, or --all")
    settings = load_settings()
    topic = settings.topic_prefix + Topic.DEAD_LETTERS
    last = None if place is None else find_letter(settings, place)
    with reading_topics(settings) as consumer:
        doomed = up_to(consumer, topic, last)
    count = sum(doomed.counts.values())
    if count and not yes:
        what = "all of them" if last is None else f"those of partition {last.partition} up to {place}"
        confirm(f"permanently delete {named(count)}, {what}?")
    if count:
        delete_before(settings, topic, doomed.ends)
    if as_json:
        print_json({"dropped": count, "by_partition": doomed.counts})
    else:
        print_text(f"dropped {named(count)}")


def confirm(question: str) -> None:
    """Ask on standard error, to keep standard output for results.

    Raises ``UserError`` unless the answer is yes.
    """
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was deleted (use --yes to skip this question)")


def named(count: int) -> str:
    """``1 dead letter``, ``2 dead letters``."""
    return f"{count:,} dead letter{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class Doomed:
    """By partition: the offset before which letters will be dropped, and their number."""

    ends: dict[int, int]
    counts: dict[int, int]


def up_to(consumer: Consumer, topic: str, last: Letter | None) -> Doomed:
    """The letters up to ``last`` in its partition, or all current letters."""
    ends: dict[int, int] = {}
    counts: dict[int, int] = {}
    for partition in partitions_of(consumer, topic) if last is None else [last.partition]:
        first, end = bounds_of(consumer, topic, partition)
        ends[partition] = end if last is None else last.offset + 1
        counts[partition] = sum(1 for _ in read_range(consumer, topic, partition, first, ends[partition]))
    return Doomed(ends, counts)


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
