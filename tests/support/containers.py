"""Kafka and Postgres in containers from the official images: the same fixtures on servers that
Retrofill did not start.
"""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from psycopg.conninfo import make_conninfo
from pydantic import SecretStr
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import ExecWaitStrategy, LogMessageWaitStrategy

from retrofill_core.contract.topics import SERVICES
from retrofill_core.settings import Settings
from retrofill_core.store.roles import READER
from retrofill_tools.admin.init import prepare_database
from retrofill_tools.stack.ports import held_port
from tests.support.installation import PARTITIONS
from tests.support.servers import Servers

POSTGRES_IMAGE = "postgres:18"
# Where no registry answers, another image may be at hand.
KAFKA_IMAGE = os.environ.get("RETROFILL_TEST_KAFKA_IMAGE", "apache/kafka:4.2.2")
OWNER = DATABASE = "retrofill"
START_SECONDS = 120
# The embedded servers' settings, so tests see the same behavior.
POSTGRES_SETTINGS = {"max_connections": 200, "shared_buffers": "128MB", "max_wal_size": "1GB"}
KAFKA_SETTINGS = {
    "KAFKA_NODE_ID": 1,
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    # The broker also connects to itself to end transactions, so it needs a listener that is
    # reachable from inside.
    "KAFKA_LISTENERS": "HOST://:9092,INSIDE://:19092,CONTROLLER://:9093",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT,HOST:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "INSIDE",
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_DEFAULT_REPLICATION_FACTOR": 1,
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": 1,
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": 4,
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": 1,
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": 1,
    "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": 4,
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": 1,
    "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": 1,
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": 0,
    "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": 1,
    "KAFKA_MESSAGE_MAX_BYTES": 2_097_152,
    "KAFKA_HEAP_OPTS": "-Xmx512m",
}


class ContainerServers(Servers):
    """The two servers in containers; ``home`` is for the tests' own files."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings = Settings(home=home, partitions=PARTITIONS, replication_factor=1)
        self._running = ExitStack()

    def start(self) -> None:
        """Start both, and prepare the database that becomes the template."""
        password = secrets.token_urlsafe(12)
        postgres = self._running.enter_context(postgres_container(password))
        with held_port() as port:
            self._running.enter_context(kafka_container(port, self.settings))
        place = {"host": "127.0.0.1", "port": postgres.get_exposed_port(5432), "dbname": DATABASE}
        roles = {name: service.role for name, service in SERVICES.items()} | {"reader": READER}
        dsns = {name: _dsn(place, role, secrets.token_urlsafe(12)) for name, role in roles.items()}
        self.settings = self.settings.model_copy(
            update={
                "kafka_bootstrap_servers": f"127.0.0.1:{port}",
                "postgres_dsn": _dsn(place, OWNER, password),
                "postgres_service_dsns": dsns,
            }
        )
        prepare_database(self.settings)

    def stop(self) -> None:
        """Remove both with their data."""
        self._running.close()

    def as_admin(self, settings: Settings) -> Settings:
        """This Kafka has no authorizer, so no login is needed."""
        return settings


def postgres_container(password: str) -> DockerContainer:
    """A Postgres that is ready when it answers over TCP. The temporary server of the first start
    listens on its socket only.
    """
    made = DockerContainer(POSTGRES_IMAGE)
    made.ports["5432/tcp"] = ("127.0.0.1", None)
    for name, value in {"USER": OWNER, "DB": DATABASE, "PASSWORD": password}.items():
        made = made.with_env(f"POSTGRES_{name}", value)
    options = [part for name, value in POSTGRES_SETTINGS.items() for part in ("-c", f"{name}={value}")]
    ready = ExecWaitStrategy(["pg_isready", "-h", "127.0.0.1", "-U", OWNER, "-d", DATABASE])
    return made.with_command(["postgres", *options]).waiting_for(ready.with_startup_timeout(START_SECONDS))


def kafka_container(port: int, settings: Settings) -> DockerContainer:
    """A broker that clients on this machine reach at ``port``. It advertises this port, so it must
    be chosen in advance.
    """
    session_ms = int(settings.consumer_session_seconds * 1000)
    heartbeat_ms = min(1000, session_ms // 3)
    more: dict[str, Any] = {
        "KAFKA_ADVERTISED_LISTENERS": f"HOST://127.0.0.1:{port},INSIDE://localhost:19092",
        "KAFKA_GROUP_CONSUMER_SESSION_TIMEOUT_MS": session_ms,
        "KAFKA_GROUP_CONSUMER_MIN_SESSION_TIMEOUT_MS": min(session_ms, 3000),
        "KAFKA_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": heartbeat_ms,
        "KAFKA_GROUP_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS": min(heartbeat_ms, 500),
    }
    made = DockerContainer(KAFKA_IMAGE)
    made.ports["9092/tcp"] = ("127.0.0.1", port)  # reachable from this machine only, because there is no password
    for name, value in {**KAFKA_SETTINGS, **more}.items():
        made = made.with_env(name, str(value))
    started = LogMessageWaitStrategy("Kafka Server started")
    return made.waiting_for(started.with_startup_timeout(START_SECONDS))


def _dsn(place: dict[str, Any], role: str, password: str) -> SecretStr:
    return SecretStr(make_conninfo(user=role, password=password, **place))
