"""Decides about a batch that was not published: wait, try fewer rows, set one row aside, or hold a topic.

The rows of a held topic wait in the outbox, with growing pauses.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError

from retrofill_core.store.outbox import Stored

FIRST_SECONDS = 5.0
MAX_SECONDS = 60.0


@dataclass(frozen=True)
class Held:
    """One topic: why it was refused, the current pause in seconds, and its end (monotonic).

    ``rows``: those that it did not store in time, the first of each partition.
    """

    reason: str
    seconds: float
    until: float
    rows: Sequence[Stored] = ()


class Holds:
    """The topics of one relay that were refused and have not accepted a message since."""

    def __init__(self) -> None:
        self._held: Mapping[str, Held] = {}

    def hold(self, topic: str, reason: str, rows: Sequence[Stored] = ()) -> None:
        """Pause ``topic``, twice as long each time, up to ``MAX_SECONDS``."""
        before = self._held.get(topic)
        seconds = FIRST_SECONDS if before is None else min(2 * before.seconds, MAX_SECONDS)
        # Replaced, never mutated: other threads read it.
        self._held = {**self._held, topic: Held(reason, seconds, time.monotonic() + seconds, rows)}

    def waiting(self) -> list[str]:
        """Topics that must not be tried yet."""
        now = time.monotonic()
        return [topic for topic, held in self._held.items() if held.until > now]

    def due(self) -> dict[str, Held]:
        """Held topics that may be tried again."""
        waiting = self.waiting()
        return {topic: held for topic, held in self._held.items() if topic not in waiting}

    def release(self, topics: Iterable[str]) -> None:
        """End the holds on ``topics``."""
        published = set(topics)
        if published & set(self._held):
            self._held = {topic: held for topic, held in self._held.items() if topic not in published}

    def seconds_to_next(self, limit: float) -> float:
        """Seconds until the next topic is due, at most ``limit``."""
        now = time.monotonic()
        return min([limit, *(max(0.0, held.until - now) for held in self._held.values())])

    def problem(self) -> str | None:
        """One line on the topics that refuse events, ``None`` if none does; from any thread."""
        held = self._held
        if not held:
            return None
        return "; ".join(f"topic {topic} rejects events: {one.reason}" for topic, one in sorted(held.items()))


# The message itself can never be published.
ROW_CODES = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError._INVALID_ARG,
    }
)
# The topic accepts no message until it is recreated or the right is granted; the rows are fine.
TOPIC_CODES = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


@dataclass(frozen=True)
class Refusal:
    """Kafka's error code, and one readable line."""

    code: int
    text: str


@dataclass(frozen=True)
class Wait:
    """Kafka cannot publish it now: send the same batch again later."""


@dataclass(frozen=True)
class Narrow:
    """One of several rows is refused: publish the first ``rows`` of the batch, then continue."""

    rows: int


@dataclass(frozen=True)
class HeldTopics:
    """Topics that accept nothing, with the reason. Rows of other topics continue."""

    topics: Mapping[str, str]


@dataclass(frozen=True)
class Stuck:
    """Topics that did not store their rows, though the cursor's topic did. Rows of other topics continue."""

    topics: frozenset[str]


@dataclass(frozen=True)
class RefusedAlone:
    """This row, alone in its batch, is refused permanently."""

    row: int
    reason: str


Decision = Wait | Narrow | HeldTopics | Stuck | RefusedAlone


def decide(
    rows: Sequence[tuple[int, str]],
    refused: Mapping[int, Refusal],
    overall: Refusal | None,
    *,
    slow: bool = False,
    stuck: Collection[int] = (),
) -> Decision:
    """Decide about a batch of ``rows`` (id, topic) that was not published.

    ``refused``: the broker's refusals of single rows, by id. ``overall``: its refusal of the
    transaction. ``slow``: the rows were not delivered in time; ``stuck``: those of them
    that were not, though the cursor was. The broker refuses all messages of a
    request together, valid ones too, so only a row that was refused alone is set aside.
    """
    topics = {topic: refused[id].text for id, topic in rows if id in refused and refused[id].code in TOPIC_CODES}
    if topics:
        return HeldTopics(topics)
    named = [n for n, (id, _) in enumerate(rows) if id in refused and refused[id].code in ROW_CODES]
    if named:
        id = rows[named[0]][0]
        if len(rows) == 1:
            return RefusedAlone(id, refused[id].text)
        return Narrow(named[0] or (1 if len(named) == 1 else len(rows) // 2))
    if overall is not None and overall.code in TOPIC_CODES and rows:
        # A missing write permission is reported for the transaction, without the topic.
        all_topics = {topic for _, topic in rows}
        return HeldTopics(dict.fromkeys(all_topics, overall.text)) if len(all_topics) == 1 else Narrow(len(rows) // 2)
    if stuck:
        return Stuck(frozenset(topic for id, topic in rows if id in stuck))
    if slow and len(rows) > 1:
        return Narrow(len(rows) // 2)
    return Wait()
