"""Creates the topics of the contract and refuses existing ones that do not fit the installation."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from retrofill_core.bus.clients import admin
from retrofill_core.contract.topics import COMPACTED, SERVICES, Topic
from retrofill_core.settings import Settings

REQUEST_SECONDS = 15.0
FOREVER = "-1"


class TopicsDiffer(Exception):
    """A topic has too few partitions."""


def create_topics(settings: Settings) -> None:
    """Create missing topics and check the others. Idempotent.

    Raises ``TopicsDiffer`` or ``KafkaException``.
    """
    client = admin(settings, "retrofill-init")
    wanted = {topic.topic: topic for topic in wanted_topics(settings)}
    for future in client.create_topics(list(wanted.values()), request_timeout=REQUEST_SECONDS).values():
        try:
            future.result()
        except KafkaException as e:
            if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    for name, count in _partition_counts(client, list(wanted)).items():
        needed = wanted[name].num_partitions
        # More do no harm (bus/worker/added.py, bus/membership.py), and Kafka cannot remove them.
        if count < needed:
            raise TopicsDiffer(
                f"topic {name} has {count} partitions but needs {needed}: add the missing ones with "
                f"'kafka-topics --alter --topic {name} --partitions {needed}', "
                "or set RETROFILL_TOPIC_PREFIX to a prefix of its own"
            )


def _partition_counts(client: AdminClient, names: list[str]) -> dict[str, int]:
    # The broker that replies may not know a new topic yet.
    for attempt in Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, KafkaException)),
        stop=stop_after_delay(REQUEST_SECONDS),
        wait=wait_fixed(0.1),
        reraise=True,
    ):
        with attempt:
            described = client.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
            return {name: len(future.result().partitions) for name, future in described.items()}
    raise AssertionError("unreachable: the last try raises")


def wanted_topics(settings: Settings) -> list[NewTopic]:
    """Specifications of all topics: full names, partitions, replicas and configuration."""
    prefix, factor = settings.topic_prefix, settings.replication_factor
    topics = [
        NewTopic(
            f"{prefix}{topic}",
            num_partitions=settings.partitions,
            replication_factor=factor,
            config=_config(topic, factor),
        )
        for topic in Topic
    ]
    cursors = [
        NewTopic(
            service.cursor_topic(prefix),
            num_partitions=1,
            replication_factor=factor,
            # Only the last record matters: small segments keep the read at a takeover short.
            config={**_durable(factor), "cleanup.policy": "compact", "segment.bytes": "10485760"},
        )
        for service in SERVICES.values()
    ]
    return topics + cursors


def _config(topic: Topic, factor: int) -> dict[str, str]:
    config = {**_durable(factor), "max.message.bytes": "2097152"}
    if topic in COMPACTED:
        return {**config, "cleanup.policy": "compact"}
    if topic == Topic.DEAD_LETTERS:
        return {**config, "retention.ms": FOREVER}
    return config


def _durable(factor: int) -> dict[str, str]:
    """With three brokers, acknowledged messages survive the loss of one."""
    return {"min.insync.replicas": str(max(1, factor - 1))}
