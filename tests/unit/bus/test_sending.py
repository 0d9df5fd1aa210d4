"""Findings of a transaction of the relay about the rows that Kafka does not store in time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Producer

from retrofill_core.bus.relay.sending import Sending
from retrofill_core.store.outbox import Stored

ROWS = [
    Stored(id, topic, b"k", b"v", [], datetime.now(UTC))
    for id, topic in ((1, "good"), (2, "bad"), (3, "good"), (4, "bad"))
]
PURGED = KafkaError(KafkaError._PURGE_QUEUE)


class Client:
    """A producer that delivers to some topics only, and purges the rest when it aborts."""

    def __init__(self, *stuck: str) -> None:
        self._stuck = stuck
        self._queue: list[tuple[str, Callable[..., None]]] = []

    def begin_transaction(self) -> None:
        pass

    def produce(self, topic: str, *, on_delivery: Callable[..., None], **_: Any) -> None:
        self._queue.append((topic, on_delivery))

    def flush(self, timeout: float) -> int:
        done = [each for each in self._queue if each[0] not in self._stuck]
        self._queue = [each for each in self._queue if each[0] in self._stuck]
        for _, on_delivery in done:
            on_delivery(None, None)
        return len(self._queue)

    def abort_transaction(self, timeout: float) -> None:
        for _, on_delivery in self._queue:
            on_delivery(PURGED, None)

    def commit_transaction(self, timeout: float) -> None:
        assert self._queue == []


def sent(*stuck: str) -> tuple[Sending, bool]:
    sending = Sending(cast("Producer", Client(*(f"t.{topic}" for topic in stuck))), "t.", 1)
    return sending, sending.publish(ROWS, lambda: ("t.cursor", b"cursor", b"1"))


def test_all_is_stored() -> None:
    sending, published = sent()
    assert published
    assert (sending.slow, sending.stuck) == (False, [])


@pytest.mark.parametrize(
    ("topics", "stuck"), [(["bad"], [2]), (["good", "bad"], [1, 2]), (["bad", "cursor"], []), (["cursor"], [])]
)
def test_rows_are_stuck_only_if_the_cursor_is_not(topics: list[str], stuck: list[int]) -> None:
    sending, published = sent(*topics)
    assert not published
    assert sending.slow
    assert [row.id for row in sending.stuck] == stuck


def test_the_reason_names_the_first_row_of_each_partition_also_after_the_abort() -> None:
    sending, _ = sent("bad", "cursor")
    assert sending.abort()
    assert sending.reason().endswith("; partition 0 of t.bad has not stored outbox row 2")
