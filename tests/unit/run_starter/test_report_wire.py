"""Reports during a broker's start: the broker denies that any topic exists, and the client believes
it until it asks again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from retrofill_core.contract.runs import AttemptHeartbeat
from run_starter.host.report_wire import ReportWire


class Broker:
    """A client that fails to publish with ``reason`` until it has requested the topic's metadata
    ``asked_until`` times.
    """

    def __init__(self, reason: int | BufferError, asked_until: int) -> None:
        self._reason = reason
        self.refuses: KafkaError | None = None
        self._asked_until = asked_until
        self.asked = 0
        self._published: list[Callable[[Any, Any], None]] = []
        self._there = threading.Event()

    def produce(self, topic: str, *, on_delivery: Callable[[Any, Any], None], **_: Any) -> None:
        if self.asked < self._asked_until:
            raise self._reason if isinstance(self._reason, BufferError) else KafkaException(KafkaError(self._reason))
        self._published.append(on_delivery)
        self._there.set()

    def flush(self, _: float) -> None:
        """Nothing is left."""

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked += 1

    def poll(self, seconds: float) -> None:
        self._there.wait(seconds)
        while self._published:
            self._published.pop()(self.refuses, None)


def heartbeat() -> AttemptHeartbeat:
    return AttemptHeartbeat(backfill_id="b", attempt_id=1, sent_at=datetime.now(UTC))


def sent(broker: Broker) -> str | None:
    """What becomes of a report."""
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    wire = ReportWire(lambda: broker, "t.", 12)  # type: ignore[arg-type, return-value]
    wire.send(heartbeat(), "test", answers.put)
    try:
        return answers.get(timeout=20)
    finally:
        wire.close()


def test_a_report_waits_until_its_topic_is_known_again() -> None:
    # The wire asks once before the first report.
    broker = Broker(KafkaError._UNKNOWN_TOPIC, asked_until=3)
    assert sent(broker) is None
    assert broker.asked >= 3


def test_a_report_waits_while_too_much_waits_already() -> None:
    assert sent(Broker(BufferError("queue full"), asked_until=3)) is None


def test_what_asking_again_does_not_mend_is_said() -> None:
    said = sent(Broker(KafkaError.MSG_SIZE_TOO_LARGE, asked_until=1_000_000))
    assert said is not None and said.startswith("a AttemptHeartbeat cannot be sent: ")


def test_one_that_kafka_refuses_is_said() -> None:
    broker = Broker(KafkaError._UNKNOWN_TOPIC, asked_until=0)
    broker.refuses = KafkaError(KafkaError._MSG_TIMED_OUT)
    said = sent(broker)
    assert said is not None and said.startswith("a AttemptHeartbeat was not delivered: ")


class Failing(Broker):
    """One that a fatal error has ended: as in librdkafka, ``poll`` and ``produce`` raise it."""

    def __init__(self) -> None:
        super().__init__(BufferError(), asked_until=0)
        self.failed = threading.Event()

    def produce(self, topic: str, **more: Any) -> None:
        if self.failed.is_set():
            raise KafkaException(KafkaError(KafkaError._FATAL))
        super().produce(topic, **more)
        self.failed.set()

    def poll(self, seconds: float) -> None:
        if self.refuses is None:
            self.failed.wait(seconds)
            if self.failed.is_set():
                raise KafkaException(KafkaError(KafkaError._FATAL))
        else:
            super().poll(seconds)

    def purge(self) -> None:
        self.refuses = KafkaError(KafkaError._PURGE_INFLIGHT)

    def __len__(self) -> int:
        return len(self._published)


def test_a_producer_that_failed_for_good_is_replaced_and_what_it_had_is_said_to_be_lost() -> None:
    clients: list[Any] = [Failing(), Broker(BufferError(), asked_until=0)]
    made = iter(clients)
    wire = ReportWire(lambda: next(made), "t.", 12)
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    wire.send(heartbeat(), "test", answers.put)
    said = answers.get(timeout=20)
    assert said is not None and said.startswith("a AttemptHeartbeat was not delivered: ")
    for _ in range(2):
        wire.send(heartbeat(), "test", answers.put)
        assert answers.get(timeout=20) is None
    assert wire._thread.is_alive()
    wire.close()


def test_the_thread_that_waits_for_acknowledgements_outlives_an_error() -> None:
    class Once(Broker):
        failed = threading.Event()

        def poll(self, seconds: float) -> None:
            if not self.failed.is_set():
                self.failed.set()
                raise RuntimeError("can't start new thread")
            super().poll(seconds)

    broker = Once(BufferError(), asked_until=0)
    wire = ReportWire(lambda: broker, "t.", 12)  # type: ignore[arg-type, return-value]
    assert broker.failed.wait(20)
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    wire.send(heartbeat(), "test", answers.put)
    assert answers.get(timeout=20) is None
    assert wire._thread.is_alive()
    wire.close()
