"""Following a topic as a subscriber does: committed events of all partitions, as they come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from confluent_kafka import TopicPartition

from retrofill.client.kafka import content, ends_of, partitions_of, reading_topics
from retrofill.contract.base import Undecodable, decode_object
from retrofill.contract.topics import Topic
from retrofill.settings import Settings

POLL_SECONDS = 0.25


def follow(settings: Settings, topic: Topic, *, from_beginning: bool) -> Iterator[dict[str, Any]]:
    """The events that are published from now on (or all), as JSON objects, without end."""
    name = settings.topic_prefix + topic
    with reading_topics(settings) as consumer:
        partitions = partitions_of(consumer, name)
        if from_beginning:
            consumer.assign([TopicPartition(name, partition, 0) for partition in partitions])
        else:
            consumer.assign(ends_of(consumer, [(name, partition) for partition in partitions]))
        while True:
            message = content(consumer.poll(POLL_SECONDS))
            if message is None:
                continue
            try:
                yield decode_object(message.value() or b"")
            except Undecodable:  # somebody else's on this topic
                continue
