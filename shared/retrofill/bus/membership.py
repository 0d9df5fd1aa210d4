"""Who is the relay: the member of the cursor topic's consumer group to which Kafka assigned its one partition."""

from __future__ import annotations

import threading

import structlog
from confluent_kafka import Consumer, TopicPartition

from retrofill.bus.calls import ANSWER_SECONDS, Calls
from retrofill.bus.clients import common_config
from retrofill.bus.poller import raise_refusals
from retrofill.contract.topics import Service
from retrofill.settings import Settings

log = structlog.get_logger(__name__)
POLL_SECONDS = 0.5


class Membership(threading.Thread):
    """Polls the cursor topic's consumer group: whoever is assigned its one partition is the relay."""

    def __init__(self, settings: Settings, service: Service, instance: str, changed: threading.Event) -> None:
        super().__init__(name="relay-membership", daemon=True)
        self._topic = service.cursor_topic(settings.topic_prefix)
        self._changed = changed
        self._stopping = threading.Event()
        self._calls = Calls()
        self.assigned = threading.Event()
        self._consumer = Consumer(
            {
                **common_config(settings, f"{instance}-relay"),
                "group.id": f"{service.group(settings.topic_prefix)}-relay",
                "group.protocol": "consumer",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "latest",
            }
        )

    def run(self) -> None:
        """Keep the membership until stopped."""
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while not self._stopping.is_set():
            self._calls.make()
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None and (error := message.error()) is not None:
                log.debug("relay_membership", error=error.str())
        self._consumer.close()

    def confirm(self, offset: int) -> None:
        """Have the coordinator accept a commit. Raises ``KafkaException`` where the partition is not ours any more."""
        offsets = [TopicPartition(self._topic, 0, offset)]
        answer = self._calls.ask(lambda: self._consumer.commit(offsets=offsets, asynchronous=False))
        raise_refusals(answer.result(ANSWER_SECONDS))

    def stop(self) -> None:
        """Leave the group."""
        self._stopping.set()
        self.join(timeout=10)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        # Membership is all that is wanted: the cursor is read by another consumer, read_committed, when taking over.
        consumer.pause(partitions)
        self.assigned.set()
        self._changed.set()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        self.assigned.clear()
        self._changed.set()
