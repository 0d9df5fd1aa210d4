"""The embedded Kafka broker, a single KRaft node.

Its jars are downloaded once and its storage is formatted once.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import platformdirs

from retrofill.java import spark_jars, trust_options
from retrofill.settings import Settings
from retrofill.stack import kafka_auth
from retrofill.stack.layout import KAFKA, Identity, Layout

VERSION = "4.3.0"
MAX_MESSAGE_BYTES = 2_097_152


class FetchFailed(Exception):
    """The broker's jars could not be downloaded."""


def cache_folder(settings: Settings) -> Path:
    """Where downloads are kept, for all stacks of this user."""
    return settings.cache or Path(platformdirs.user_cache_dir("retrofill"))


def fetch(settings: Settings, java: Path, progress: Callable[[str], None], environment: dict[str, str]) -> Path:
    """The directory of the broker's jars.

    Downloads them with Spark's Ivy if needed. Raises ``FetchFailed``.
    """
    cache = cache_folder(settings)
    jars = cache / f"kafka-{VERSION}"
    if jars.exists():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fetch.lock").open("w") as lock:
        # Two stacks that start at the same time download once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            _fetch(cache, jars, java, progress, environment, lock.fileno())
    return jars


def _fetch(
    cache: Path, jars: Path, java: Path, progress: Callable[[str], None], environment: dict[str, str], lock: int
) -> None:
    draft = cache / f"kafka-{VERSION}.part"
    shutil.rmtree(draft, ignore_errors=True)
    ivy = next(spark_jars().glob("ivy-*.jar"))
    command = [
        str(java), *trust_options(), "-jar", str(ivy),
        "-dependency", "org.apache.kafka", "kafka_2.13", VERSION, "-confs", "default",
        # Some dependencies are packaged as bundles, which are also jars.
        "-types", "jar", "bundle",
        "-cache", str(cache / "ivy"), "-retrieve", f"{draft}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    tail: list[str] = []
    fetched = 0
    progress(f"downloading Kafka {VERSION} (once, 41 MB)")
    # The child inherits the lock: if this process is killed, others still wait for the child.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, pass_fds=[lock]
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-20:], line.strip()]
            if "[SUCCESSFUL" in line:
                fetched += 1
                progress(f"downloading Kafka {VERSION} (once, 41 MB): {fetched} files")
    if process.returncode != 0 or not any(draft.glob(f"kafka_2.13-{VERSION}.jar")):
        why = next((text for text in reversed(tail) if "UNRESOLVED" in text or "ERROR" in text), " ".join(tail[-3:]))
        raise FetchFailed(f"Kafka {VERSION} could not be downloaded from Maven Central: {why[:300]}")
    draft.rename(jars)


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

    Returns the command that runs the broker.
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
        _write(properties, {**values, "log.dirs": draft})
        _format(java, jars, identity.cluster_id, properties, environment)
        draft.rename(data)
    _write(properties, values)
    return [
        str(java), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4", "-Djava.awt.headless=true",
        "-cp", f"{jars}/*", "kafka.Kafka", str(properties),
    ]  # fmt: skip


def _format(java: Path, jars: Path, cluster_id: str, properties: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [str(java), "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if done.returncode != 0:
        raise OSError(f"its storage could not be formatted: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


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


def _write(properties: Path, values: dict[str, object]) -> None:
    properties.touch(mode=0o600)
    properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
