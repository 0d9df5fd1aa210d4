"""Relay election: the relay is the group member that has the cursor topic's first partition."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from confluent_kafka import Consumer, TopicPartition

from retrofill.log import get_log
from retrofill_core.bus.clients import client_config, is_fatal
from retrofill_core.bus.poller import CALL_SECONDS, Calls, Member, raise_refusals
from retrofill_core.bus.relay.cursor import CURSOR_PARTITION
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings

log = get_log(__name__)
# How long a request to commit or to stop may go unnoticed.
POLL_SECONDS = 0.25


class Membership(threading.Thread):
    """``assigned`` is set while this instance is the relay, ``changed`` on every change."""

    def __init__(self, settings: Settings, service: Service, instance: str, changed: threading.Event) -> None:
        super().__init__(name="relay-membership", daemon=True)
        self._topic = service.cursor_topic(settings.topic_prefix)
        self._changed = changed
        self._stopping = threading.Event()
        self._calls = Calls()
        self.assigned = threading.Event()
        self._member = Member(
            client_config(
                settings,
                f"{instance}-relay",
                **{
                    "group.id": service.relay_id(settings.topic_prefix),
                    "group.protocol": "consumer",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "latest",
                },
            ),
            [self._topic],
            self._on_assign,
            self._on_revoke,
        )

    def run(self) -> None:
        """Poll until stopped."""
        while not self._stopping.is_set():
            self._calls.run_pending()
            message = self._member.poll(POLL_SECONDS)
            if message is not None and (error := message.error()) is not None:
                log.debug("relay_membership", error=error.str())
                if is_fatal(error):
                    self._member.replace(error)
                    self._lose()
        self._member.consumer.close()

    def confirm(self, offset: int) -> None:
        """Commit ``offset``. Raises ``KafkaException`` if the partition is no longer ours."""
        offsets = [TopicPartition(self._topic, CURSOR_PARTITION, offset)]
        reply = self._calls.submit(lambda: self._member.consumer.commit(offsets=offsets, asynchronous=False))
        raise_refusals(reply.result(CALL_SECONDS))

    def stop(self) -> None:
        """Leave the group and end the thread."""
        self._stopping.set()
        self.join(timeout=10)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        # Only the membership counts; another consumer reads the cursor.
        consumer.pause(partitions)
        if _has_cursor(partitions):
            self.assigned.set()
            self._changed.set()

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        if _has_cursor(partitions):
            self._lose()

    def _lose(self) -> None:
        self.assigned.clear()
        self._changed.set()


def _has_cursor(partitions: Iterable[TopicPartition]) -> bool:
    return any(each.partition == CURSOR_PARTITION for each in partitions)
