"""The one reader of Kafka of a console."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from retrofill.errors import UserError
from retrofill.log import get_log
from retrofill_console.live.hub import TOPICS, Event, Hub, shortened
from retrofill_core.bus.clients import reader
from retrofill_core.contract.base import Undecodable, decode_object
from retrofill_core.contract.topics import CLI_CLIENT, Topic
from retrofill_core.settings import Settings
from retrofill_tools.client.connect import explain_kafka
from retrofill_tools.client.kafka import bounds_of, content, partitions_of

log = get_log(__name__)
POLL_SECONDS = 0.25
AT_ONCE = 500
RETRY_SECONDS = 1.0
# How long a broker may be silent after an error before it is asked whether it is there.
ASK_SECONDS = 2.0
# How far before the end of each partition it begins, so that viewers of an earlier console miss nothing.
BEHIND = 100


class LiveReader(threading.Thread):
    """Reads events until stopped, and gives them to a hub in its event loop."""

    def __init__(self, settings: Settings, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="live-reader", daemon=True)
        self._settings = settings
        self._hub = hub
        self._loop = loop
        self._stopping = threading.Event()
        self._error: KafkaError | None = None

    def run(self) -> None:
        """Read; after an error, begin again."""
        while not self._stopping.is_set():
            try:
                self._read()
            except (KafkaException, UserError) as e:
                why = explain_kafka(self._settings, e) if isinstance(e, KafkaException) else str(e)
                log.warning("live_reader_waits", error=why)
                self._tell(self._hub.report, why)
                self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """End the thread at its next wake-up, without waiting for it."""
        self._stopping.set()

    def _read(self) -> None:
        consumer = reader(self._settings, CLI_CLIENT, error_cb=self._note)
        try:
            places, positions = self._begin(consumer)
            self._tell(self._hub.start_at, positions)
            self._tell(self._hub.report, None)
            while not self._stopping.is_set():
                self._pass_on(consumer.consume(AT_ONCE, POLL_SECONDS), places)
                self._look_after(consumer)
        finally:
            consumer.close()

    def _begin(self, consumer: Consumer) -> tuple[dict[tuple[str, int], int], list[int]]:
        """Assign all partitions shortly before their ends; their places, and their first offsets."""
        assigned = []
        for topic in TOPICS:
            name = self._settings.topic_prefix + topic
            for partition in partitions_of(consumer, name):
                first, end = bounds_of(consumer, name, partition)
                assigned.append(TopicPartition(name, partition, max(first, end - BEHIND)))
        consumer.assign(assigned)
        return {(each.topic, each.partition): n for n, each in enumerate(assigned)}, [each.offset for each in assigned]

    def _pass_on(self, messages: list[KafkaMessage], places: dict[tuple[str, int], int]) -> None:
        events = [event for each in messages if (event := self._event(each, places)) is not None]
        if events:
            self._tell(self._hub.add, events)

    def _event(self, found: KafkaMessage, places: dict[tuple[str, int], int]) -> Event | None:
        there = content(found)
        if there is None:
            return None
        name, partition, offset = there.topic() or "", there.partition() or 0, there.offset() or 0
        topic = Topic(name.removeprefix(self._settings.topic_prefix))
        place = places[name, partition]
        if topic == Topic.DEAD_LETTERS:
            return Event(place, offset, topic, {"topic": topic, "type": "DeadLetter", "place": f"{partition}:{offset}"})
        try:
            return Event(place, offset, topic, shortened(topic, decode_object(there.value() or b"")))
        except Undecodable:  # another producer's message
            return None

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._error = error

    def _look_after(self, consumer: Consumer) -> None:
        """After the connection was lost: say so until Kafka answers again. The client goes on by itself."""
        if self._error is None:
            return
        try:
            consumer.list_topics(timeout=ASK_SECONDS)
        except KafkaException:
            self._tell(self._hub.report, f"Kafka at {self._settings.bootstrap_servers()} does not answer")
            return
        self._error = None
        self._tell(self._hub.report, None)

    def _tell(self, call: Callable[..., object], *arguments: object) -> None:
        # The loop is gone if the console was stopped meanwhile.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)
