"""A member of a consumer group, which joins again where librdkafka gives up, and calls on the thread that polls it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from retrofill.log import get_log

log = get_log(__name__)
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
OnPartitions = Callable[[Consumer, list[TopicPartition]], None]


class Member:
    """A consumer that subscribes to topics, for one thread.

    A heartbeat that the coordinator refuses, such as for a missing right or an error that librdkafka does not know,
    ends a consumer for good: it stays silent even when the coordinator accepts heartbeats again. Replace it then.
    """

    def __init__(
        self, config: Mapping[str, Any], topics: Sequence[str], on_assign: OnPartitions, on_revoke: OnPartitions
    ) -> None:
        self._config = dict(config)
        self._topics = list(topics)
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self.consumer = Consumer(self._config)
        self._join_at: float | None = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    def poll(self, seconds: float) -> Message | None:
        """The next message or error. Joins the group first, once it is time to."""
        if self._join_at is not None and time.monotonic() >= self._join_at:
            self._join_at = None
            self.consumer.subscribe(
                self._topics, on_assign=self._assigned, on_revoke=self._on_revoke, on_lost=self._on_revoke
            )
        return self.consumer.poll(seconds)

    def replace(self, error: KafkaError) -> None:
        """Take another consumer, which joins after a pause that grows until one is assigned something.

        The caller has lost all partitions, whether ``on_revoke`` is called or not.
        """
        log.error("kafka_consumer_failed", error=error.str(), joins_again_in_seconds=self._pause)
        self.consumer.close()
        self.consumer = Consumer(self._config)
        self._join_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, MAX_PAUSE_SECONDS)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._pause = FIRST_PAUSE_SECONDS
        self._on_assign(consumer, partitions)


T = TypeVar("T")
CALL_SECONDS = 20.0


class Calls:
    """A queue of calls, run in order by the thread that calls ``run_pending``."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[Callable[[], object], Future[object]]] = SimpleQueue()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue ``call``; the future gets its result or exception."""
        future: Future[T] = Future()
        self._waiting.put((call, future))  # type: ignore[arg-type]  # the queue forgets what each call returns
        return future

    def run_pending(self) -> None:
        """Run the queued calls."""
        while True:
            try:
                call, future = self._waiting.get_nowait()
            except Empty:
                return
            try:
                future.set_result(call())
            except Exception as e:  # noqa: BLE001 - it belongs to the caller of ``submit``
                future.set_exception(e)
