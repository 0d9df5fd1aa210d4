"""What follows when Kafka refuses a batch of the outbox: wait, try fewer rows, hold a topic, or set one row aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError

# The message itself can never be published as it is.
ROW_CODES = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError._INVALID_ARG,
    }
)
# The topic takes no message at all, until somebody gives it back or grants the right: nothing is wrong with the rows.
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
    """Why something was refused: Kafka's code, and a line for people."""

    code: int
    text: str


@dataclass(frozen=True)
class Wait:
    """Kafka cannot do it now: the same batch again, a little later."""


@dataclass(frozen=True)
class Narrow:
    """One of several rows is refused: publish the first ``rows`` of the batch, then go on from there."""

    rows: int


@dataclass(frozen=True)
class Hold:
    """These topics take nothing, and why. Rows of other topics go on."""

    topics: Mapping[str, str]


@dataclass(frozen=True)
class SetAside:
    """This row, which was alone in its batch, is refused for good."""

    row: int
    reason: str


Decision = Wait | Narrow | Hold | SetAside


def decide(
    rows: Sequence[tuple[int, str]], refused: Mapping[int, Refusal], overall: Refusal | None, *, slow: bool = False
) -> Decision:
    """What to do about a batch of ``rows`` (id and topic) that was not published.

    ``refused``: what the broker said of single rows, by id. ``overall``: what it said of the transaction. ``slow``: the rows
    could not be delivered in time. The broker refuses all messages of a request together, innocent ones too: only a row that
    was refused alone is set aside.
    """
    topics = {topic: refused[id].text for id, topic in rows if id in refused and refused[id].code in TOPIC_CODES}
    if topics:
        return Hold(topics)
    named = [n for n, (id, _) in enumerate(rows) if id in refused and refused[id].code in ROW_CODES]
    if named:
        id = rows[named[0]][0]
        if len(rows) == 1:
            return SetAside(id, refused[id].text)
        return Narrow(named[0] or (1 if len(named) == 1 else len(rows) // 2))
    if overall is not None and overall.code in TOPIC_CODES and rows:
        # A missing right to write is said of the transaction, without the topic.
        all_topics = {topic for _, topic in rows}
        return Hold(dict.fromkeys(all_topics, overall.text)) if len(all_topics) == 1 else Narrow(len(rows) // 2)
    if slow and len(rows) > 1:
        return Narrow(len(rows) // 2)
    return Wait()
