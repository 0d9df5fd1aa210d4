"""Creates the topics of the contract, refuses existing ones that do not fit, and compares their configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from retrofill_core.bus.clients import admin
from retrofill_core.contract.topics import COMPACTED, SERVICES, Topic
from retrofill_core.settings import Settings

REQUEST_SECONDS = 15.0
FOREVER = "-1"
DAY_MS = 86_400_000


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
        # More do no harm (bus/takeover.py, bus/relay/cursor.py), and Kafka cannot remove them.
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


@dataclass(frozen=True)
class Difference:
    """A topic setting that should be ``wanted``; ``fatal`` if Retrofill cannot work without it."""

    topic: str
    setting: str
    found: str
    wanted: str
    why: str
    fatal: bool = False

    def line(self, bootstrap_servers: str) -> str:
        """The problem and the command that fixes it, in one line."""
        return (
            f"topic {self.topic} has {self.setting}={self.found}: {self.why}. Run: kafka-configs.sh --bootstrap-server "
            f"{bootstrap_servers} --alter --entity-type topics --entity-name {self.topic} "
            f"--add-config {self.setting}={self.wanted}"
        )


def compare_topics(settings: Settings) -> list[Difference]:
    """Differences of existing topics, fatal ones first. Raises ``KafkaException``."""
    client = admin(settings, "retrofill-init")
    wanted = {topic.topic: dict(topic.config or {}) for topic in wanted_topics(settings)}
    cursors = {service.cursor_topic(settings.topic_prefix) for service in SERVICES.values()}
    replicas = _replicas(client, list(wanted))
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in wanted}
    described = client.describe_configs(list(resources.values()), request_timeout=REQUEST_SECONDS)
    found: list[Difference] = []
    for resource, future in described.items():
        name = resource.name
        current = {entry.name: str(entry.value) for entry in future.result().values()}
        found += differences(name, wanted[name], current, replicas[name], cursor=name in cursors)
    return sorted(found, key=lambda one: not one.fatal)


def _replicas(client: AdminClient, names: list[str]) -> dict[str, int]:
    described = client.describe_topics(TopicCollection(names), request_timeout=REQUEST_SECONDS)
    return {name: min(len(p.replicas) for p in future.result().partitions) for name, future in described.items()}


def differences(
    topic: str, wanted: Mapping[str, str], current: Mapping[str, str], replicas: int, *, cursor: bool
) -> Iterator[Difference]:
    """Differences of one topic: ``wanted`` is the configuration a new topic gets."""
    if int(current["max.message.bytes"]) < int(wanted.get("max.message.bytes", 0)):
        yield Difference(
            topic,
            "max.message.bytes",
            current["max.message.bytes"],
            wanted["max.message.bytes"],
            "larger messages become dead letters",
        )
    yield from _policy(topic, wanted, current, cursor=cursor)
    in_sync, needed = int(current["min.insync.replicas"]), int(wanted["min.insync.replicas"])
    if in_sync > replicas:
        why = f"with {replicas} replicas nothing can be published"
        yield Difference(topic, "min.insync.replicas", str(in_sync), str(max(1, replicas - 1)), why, fatal=True)
    elif in_sync < needed:
        why = "an acknowledged message is lost with one broker"
        yield Difference(topic, "min.insync.replicas", str(in_sync), str(needed), why)


def _policy(topic: str, wanted: Mapping[str, str], current: Mapping[str, str], *, cursor: bool) -> Iterator[Difference]:
    policy = current["cleanup.policy"]
    limits = {
        each: current[each] for each in ("retention.ms", "retention.bytes") if current.get(each, FOREVER) != FOREVER
    }
    deletes = "delete" in policy and bool(limits)
    if wanted.get("cleanup.policy") == "compact":
        if deletes:
            why = (
                "the last batch's number is deleted, so events are published twice"
                if cursor
                else "it loses the latest states"
            )
            yield Difference(topic, "cleanup.policy", policy, "compact", why, fatal=cursor)
        return
    if "compact" in policy:
        why = "older messages of a key may be deleted before they are read"
        yield Difference(topic, "cleanup.policy", policy, "delete", why, fatal=True)
    if not deletes:
        return
    letters = wanted.get("retention.ms") == FOREVER
    why = (
        "dead letters are deleted before anyone reads them"
        if letters
        else "messages may be deleted before they are read, which stops their shard"
    )
    for setting, found in limits.items():
        # However large a size is, it may be less than what is written in a day.
        if letters or setting == "retention.bytes":
            yield Difference(topic, setting, found, FOREVER, why)
        elif int(found) < DAY_MS:
            yield Difference(topic, setting, found, str(7 * DAY_MS), why)
