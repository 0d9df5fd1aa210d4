"""A real Kafka broker of one node (KRaft): its jars fetched once, its storage formatted once."""

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
    """The broker's jars could not be fetched."""


def cache_folder(settings: Settings) -> Path:
    """Where what is downloaded once is kept."""
    return settings.cache or Path(platformdirs.user_cache_dir("retrofill"))


def fetch(settings: Settings, java: Path, progress: Callable[[str], None], environment: dict[str, str]) -> Path:
    """The folder of the broker's jars, fetched by Spark's Ivy where it is not there yet. Raises ``FetchFailed``."""
    cache = cache_folder(settings)
    jars = cache / f"kafka-{VERSION}"
    if jars.exists():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fetch.lock").open("w") as lock:
        # Two stacks that start at once fetch once.
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
        # Some of its dependencies are packaged as bundles, which are jars too.
        "-types", "jar", "bundle",
        "-cache", str(cache / "ivy"), "-retrieve", f"{draft}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    tail: list[str] = []
    fetched = 0
    progress(f"fetching Kafka {VERSION} (once, 41 MB)")
    # The child holds the lock too: where we are killed, nobody else fetches into the same folder until it ended.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, pass_fds=[lock]
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-20:], line.strip()]
            if "[SUCCESSFUL" in line:
                fetched += 1
                progress(f"fetching Kafka {VERSION} (once, 41 MB): {fetched} files")
    if process.returncode != 0 or not any(draft.glob(f"kafka_2.13-{VERSION}.jar")):
        why = next((text for text in reversed(tail) if "UNRESOLVED" in text or "ERROR" in text), " ".join(tail[-3:]))
        raise FetchFailed(f"Kafka {VERSION} could not be fetched from Maven Central: {why[:300]}")
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
    """Write the configuration, format the storage the first time; the command that runs the broker."""
    data = layout.data(KAFKA)
    properties = layout.run / "kafka.properties"
    listen, control = ports["kafka"], ports["kafka_controller"]
    session_ms = int(settings.consumer_session_seconds * 1000)
    heartbeat_ms = min(1000, session_ms // 3)
    values: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{control}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{listen},CONTROLLER://127.0.0.1:{control}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{listen}",
        "log.dirs": data,
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
        # How fast the partitions of a dead service move.
        "group.consumer.session.timeout.ms": session_ms,
        "group.consumer.min.session.timeout.ms": min(session_ms, 3000),
        "group.consumer.max.session.timeout.ms": max(session_ms, 60_000),
        "group.consumer.heartbeat.interval.ms": heartbeat_ms,
        "group.consumer.min.heartbeat.interval.ms": min(heartbeat_ms, 500),
        "message.max.bytes": MAX_MESSAGE_BYTES,
        # One node has no replicas to be durable through: what is acknowledged is on the disk.
        "log.flush.interval.messages": 1,
        "log.retention.hours": 168,
        "log.cleaner.dedupe.buffer.size": 16_777_216,
        "num.network.threads": 2,
        "num.io.threads": 4,
        **(kafka_auth.broker_settings(identity.passwords) if settings.embedded_kafka_auth else {}),
    }
    if not (data / "meta.properties").exists():
        # Formatted beside its place and moved there: a kill leaves a whole storage or none.
        draft = data.with_name(f"{data.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        _write(properties, {**values, "log.dirs": draft})
        done = subprocess.run(
            [str(java), "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format", "-t", identity.cluster_id,
             "-c", str(properties)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        if done.returncode != 0:
            raise OSError(
                f"its storage could not be formatted: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
            )
        draft.rename(data)
    _write(properties, values)
    return [
        str(java), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=4", "-Djava.awt.headless=true",
        "-cp", f"{jars}/*", "kafka.Kafka", str(properties),
    ]  # fmt: skip


def _write(properties: Path, values: dict[str, object]) -> None:
    properties.touch(mode=0o600)
    properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
