"""Reports during a broker's start: the broker denies that any topic exists, and the client believes
it until it asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from retrofill.contract.runs import AttemptHeartbeat
from retrofill.driver.report import Wire
from retrofill.settings import Settings


class Broker:
    """A client that fails to publish with ``reason`` until it has requested the topic's metadata
    ``asked_until`` times.
    """

    def __init__(self, reason: int, asked_until: int) -> None:
        self._reason = reason
        self._asked_until = asked_until
        self.asked = 0
        self._published: list[Callable[[Any, Any], None]] = []
        self._there = threading.Event()

    def produce(self, topic: str, *, on_delivery: Callable[[Any, Any], None], **_: Any) -> None:
        if self.asked < self._asked_until:
            raise KafkaException(KafkaError(self._reason))
        self._published.append(on_delivery)
        self._there.set()

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked += 1

    def poll(self, seconds: float) -> None:
        self._there.wait(seconds)
        while self._published:
            self._published.pop()(None, None)


def heartbeat() -> AttemptHeartbeat:
    return AttemptHeartbeat(backfill_id="b", attempt_id=1, sent_at=datetime.now(UTC))


def wire(broker: Broker) -> Wire:
    return Wire(Settings(), on_loss=lambda reason: pytest.fail(reason), client=broker)  # type: ignore[arg-type]


def test_a_report_waits_until_its_topic_is_known_again():
    broker = Broker(KafkaError._UNKNOWN_TOPIC, asked_until=2)
    acknowledged = threading.Event()
    sender = wire(broker)
    sender.send(heartbeat(), acknowledged.set)
    sender.flush()
    assert acknowledged.is_set()
    assert broker.asked == 2


def test_what_asking_again_does_not_mend_is_raised():
    with pytest.raises(KafkaException):
        wire(Broker(KafkaError.MSG_SIZE_TOO_LARGE, asked_until=1)).send(heartbeat())
