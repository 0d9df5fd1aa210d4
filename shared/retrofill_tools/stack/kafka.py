"""The embedded Kafka broker, a single KRaft node.

Its jars are downloaded once and its storage is formatted once.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from retrofill_core.settings import Settings
from retrofill_tools.stack import kafka_auth
from retrofill_tools.stack.layout import KAFKA, Identity, Layout
from retrofill_tools.stack.maven import Artifact
from retrofill_tools.stack.processes import why_it_ended

# Not 4.3.0 to 4.4.0: after a kill they skip markers of transactions (docs/reliability.md).
VERSION = "4.2.2"
WRITTEN_BY = "retrofill-kafka-version"
BROKER = Artifact("org.apache.kafka", "kafka_2.13", VERSION, "41 MB", whole=True)
MAX_MESSAGE_BYTES = 2_097_152


def prepare(
    layout: Layout,
    identity: Identity,
    settings: Settings,
    java: Path,
    jars: Path,
    ports: dict[str, int],
    environment: dict[str, str],
) -> list[str]:
    """Write the configuration and format the storage if it is new.

    Returns the command that runs the broker. Raises ``OSError`` if a later release formatted the storage.
    """
    data = layout.data(KAFKA)
    properties = layout.run / "kafka.properties"
    values = {
        **_broker_settings(settings, ports),
        **(kafka_auth.broker_settings(identity.passwords) if settings.embedded_kafka_auth else {}),
        "log.dirs": data,
    }
    if not (data / "meta.properties").exists():
        # Formatted in a draft directory and renamed, so a kill leaves a complete storage or none.
        draft = data.with_name(f"{data.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        write(properties, {**values, "log.dirs": draft})
        format_storage(java, jars, identity.cluster_id, properties, environment)
        (draft / WRITTEN_BY).write_text(f"{VERSION}\n")
        draft.rename(data)
    _check_version(data)
    write(properties, values)
    return [
        str(java), "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true",
        "-cp", f"{jars}/*", "kafka.Kafka", str(properties),
    ]  # fmt: skip


def _check_version(data: Path) -> None:
    """A broker ends without a word on storage whose metadata version it does not know."""
    mark = data / WRITTEN_BY
    found = mark.read_text().strip() if mark.exists() else ""
    if not found or _release(found) > _release(VERSION):
        raise OSError(
            f"{data} was formatted by {f'Kafka {found}' if found else 'another release of Kafka'}, "
            f"which Kafka {VERSION} cannot read: set RETROFILL_HOME to a new folder, or remove the old one"
        )


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number: releases of the same share their metadata version."""
    return tuple(int(each) for each in version.split(".")[:2])


def format_storage(java: Path, jars: Path, cluster_id: str, properties: Path, environment: dict[str, str]) -> None:
    """Format the storage that the properties name. Raises ``OSError``."""
    done = subprocess.run(
        [str(java), "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if done.returncode != 0:
        raise OSError(f"its storage could not be formatted: {why_it_ended(done)}")


def _broker_settings(settings: Settings, ports: dict[str, int]) -> dict[str, object]:
    listen, control = ports["kafka"], ports["kafka_controller"]
    session_ms = int(settings.consumer_session_seconds * 1000)
    heartbeat_ms = min(1000, session_ms // 3)
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{control}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{listen},CONTROLLER://127.0.0.1:{control}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{listen}",
        "auto.create.topics.enable": "false",
        "default.replication.factor": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        # How fast a dead service's partitions are reassigned.
        "group.consumer.session.timeout.ms": session_ms,
        "group.consumer.min.session.timeout.ms": min(session_ms, 3000),
        "group.consumer.max.session.timeout.ms": max(session_ms, 60_000),
        "group.consumer.heartbeat.interval.ms": heartbeat_ms,
        "group.consumer.min.heartbeat.interval.ms": min(heartbeat_ms, 500),
        "message.max.bytes": MAX_MESSAGE_BYTES,
        # There are no replicas, so every acknowledged message is synced to disk.
        "log.flush.interval.messages": 1,
        "log.retention.hours": 168,
        "log.cleaner.dedupe.buffer.size": 16_777_216,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }


def write(properties: Path, values: dict[str, object]) -> None:
    """Write the broker's properties, for nobody else to read."""
    properties.touch(mode=0o600)
    properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
