"""Test installations: a copy of a template database, topics under a unique prefix, and services as
real processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from threading import get_ident
from types import MappingProxyType
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer
from psycopg.rows import dict_row

from retrofill_core.bus.clients import producer, reader
from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.base import Message
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import CLI_CLIENT, OPERATOR, SERVICES, Topic
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.settings import Settings
from tests.support.events import Event, follow, read_to_end
from tests.support.forks import Forked, Nursery
from tests.support.replica import Replica

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
WAIT_SECONDS = 60.0
MODULES = {name: service.package for name, service in SERVICES.items()} | {
    "instant-starter": "tests.support.instant_starter",
    "light-starter": "tests.chaos.light_starter",
    "console": "retrofill_console",
}
# Modules that replace a service and report ready under its name.
READY_AS = {"instant-starter": "run-starter", "light-starter": "run-starter"}


@dataclass
class Installation:
    """One test's database, topics and processes."""

    settings: Settings
    # Where processes are forked; ``None``: each is a new interpreter, as users start them.
    nursery: Nursery | None = None
    replicas: list[Replica] = field(default_factory=list)
    _senders: dict[tuple[str, str | None], Producer] = field(default_factory=dict)
    _kept: dict[tuple[str, int], psycopg.Connection[dict[str, Any]]] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The settings as environment variables."""
        s = self.settings
        assert s.postgres_dsn is not None
        dsns = {name: dsn.get_secret_value() for name, dsn in s.postgres_service_dsns.items()}
        return {
            "RETROFILL_HOME": str(s.home),
            "RETROFILL_POSTGRES_DSN": s.postgres_dsn.get_secret_value(),
            "RETROFILL_POSTGRES_SERVICE_DSNS": json.dumps(dsns),
            "RETROFILL_KAFKA_BOOTSTRAP_SERVERS": s.bootstrap_servers(),
            "RETROFILL_TOPIC_PREFIX": s.topic_prefix,
            "RETROFILL_PARTITIONS": str(s.partitions),
            "RETROFILL_REPLICATION_FACTOR": "1",
            # Drivers that never finish must not delay the end of a test.
            "RETROFILL_DRAIN_SECONDS": "0",
            # Tests that let a host die need not wait for a minute.
            "RETROFILL_LEASE_SECONDS": "15",
            "PYTHONFAULTHANDLER": "1",
            **self._logins(),
        }

    def _logins(self) -> dict[str, str]:
        s = self.settings
        if s.kafka_security_protocol == "PLAINTEXT":
            return {}
        passwords = {who: password.get_secret_value() for who, password in s.kafka_passwords.items()}
        authority = {} if s.kafka_ssl_ca is None else {"RETROFILL_KAFKA_SSL_CA": str(s.kafka_ssl_ca)}
        return {
            "RETROFILL_KAFKA_SECURITY_PROTOCOL": s.kafka_security_protocol,
            "RETROFILL_KAFKA_PASSWORDS": json.dumps(passwords),
            **authority,
        }

    def start(
        self,
        name: str,
        environment: Mapping[str, str] = MappingProxyType({}),
        /,
        *,
        wait: bool = True,
        clock_off: float = 0.0,
        tree: Path = ROOT,
        **more: str,
    ) -> Replica:
        """Start one replica of a service (or ``instant-starter``) and wait until it is ready.

        ``clock_off`` is its clock's error in seconds. ``tree`` is the source tree to run, for
        another release.
        """
        wrong = ["tests.support.wrong_clock", str(clock_off)] if clock_off else []
        log = self.settings.home / f"{name}-{len(self.replicas)}.log"
        env = {**os.environ, **self.environment(), **path_of(tree), **environment, **more}
        process: subprocess.Popen[bytes] | Forked
        if self.nursery is not None and not wrong and tree == ROOT:
            process = self.nursery.start(MODULES[name], env, log)
        else:
            with log.open("wb") as out:
                command = [sys.executable, "-m", *wrong, MODULES[name]]
                process = subprocess.Popen(command, cwd=tree, env=env, stdout=out, stderr=out, start_new_session=True)
        replica = Replica(process, log)
        self.replicas.append(replica)
        if wait:
            service = READY_AS.get(name, name)
            ready = self.settings.home / "run" / f"{service}.{process.pid}.ready"
            until(lambda: ready.exists() or process.poll() is not None, f"{name} is ready")
            assert process.poll() is None, replica.said()
        return replica

    def close(self) -> None:
        """Stop the remaining processes, all at once."""
        there = [replica for replica in self.replicas if replica.process.poll() is None]
        for replica in there:
            replica.tell_to_stop()
        for replica in there:
            replica.stop()
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    # Postgres

    def query(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """The result rows, read as the owner."""
        return self._connection().execute(statement.encode(), parameters or None).fetchall()

    def _connection(self) -> psycopg.Connection[dict[str, Any]]:
        """One for each thread: tests poll, and a new connection costs more than a query."""
        dsn = self.settings.dsn_of("owner")
        kept = self._kept.get((dsn, get_ident()))
        # What arrives between queries is its end: the server has restarted, or a test has ended all sessions.
        if kept is None or kept.closed or select([kept.fileno()], [], [], 0)[0]:
            if kept is not None:
                kept.close()
            # Nothing prepared: tests change tables.
            kept = psycopg.connect(dsn, row_factory=dict_row, autocommit=True, prepare_threshold=None)
            kept.execute("SET search_path = retrofill")
            self._kept[dsn, get_ident()] = kept
        return kept

    def value(self, statement: str, *parameters: Any) -> Any:
        """The single value of a query."""
        ((value,),) = [row.values() for row in self.query(statement, *parameters)]
        return value

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """A connection with a transaction of its own, which is rolled back at the end."""
        conn = psycopg.connect(self.settings.dsn_of("owner"))
        try:
            conn.execute("SET search_path = retrofill")
            yield conn
        finally:
            conn.rollback()
            conn.close()

    # Kafka

    def _operator(self) -> Settings:
        return self.settings.acting_as(OPERATOR)

    def publish(
        self,
        topic: Topic,
        key: str | bytes | None,
        value: Message | bytes | None,
        *,
        partition: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> str | None:
        """Publish a message and return its ``ce_id``. Plain bytes get no headers and no ``ce_id``
        unless given.
        """
        # A new producer knows of partitions that were added since.
        sender = self._sender() if partition is None else producer(self._operator(), "test")
        if isinstance(value, Message):
            headers = headers_of(value, "test") | (headers or {})
            value = value.encode()
        to: dict[str, Any] = {} if partition is None else {"partition": partition}
        sender.produce(
            f"{self.settings.topic_prefix}{topic}", key=key, value=value, headers=wire_headers(headers or {}), **to
        )
        assert sender.flush(20) == 0
        return (headers or {}).get("ce_id")

    def _sender(self) -> Producer:
        """A cached producer, because connecting takes longer than sending."""
        settings = self._operator()
        place = (settings.bootstrap_servers(), settings.kafka_username)
        if place not in self._senders:
            self._senders[place] = producer(settings, "test")
        return self._senders[place]

    def publish_aborted(self, topic: Topic, key: str, value: bytes) -> None:
        """Publish in a transaction that is aborted, as a relay that died would leave it."""
        sender = producer(self.settings, "test", **{"transactional.id": f"test-{uuid.uuid4().hex[:6]}"})
        sender.init_transactions(20)
        sender.begin_transaction()
        sender.produce(f"{self.settings.topic_prefix}{topic}", key=key, value=value)
        assert sender.flush(20) == 0
        sender.abort_transaction(20)

    def events(self, topic: Topic, *, isolation: str = "read_committed", progress: bool = False) -> list[Event]:
        """All events of a topic up to its current end, in each partition's order.

        Without the progress of backfills: how much of it there is depends on the machine's speed.
        """
        # The end of a partition arrives with an empty fetch, which the broker need not delay.
        with self._reader(isolation, **{"fetch.wait.max.ms": 10}) as consumer:
            events = read_to_end(consumer, f"{self.settings.topic_prefix}{topic}", self.settings.partitions)
            return [event for event in events if progress or event.body.get("type") != "BackfillProgress"]

    @contextmanager
    def _reader(self, isolation: str = "read_committed", **more: Any) -> Iterator[Consumer]:
        name = f"{CLI_CLIENT}-{uuid.uuid4().hex[:6]}"
        consumer = reader(self._operator(), name, **{"isolation.level": isolation}, **more)
        try:
            yield consumer
        finally:
            consumer.close()

    def wait_event(
        self, topic: Topic, wanted: Callable[[Event], bool], what: str, seconds: float = WAIT_SECONDS
    ) -> Event:
        """Wait for an event that matches. Returns the first one."""
        end = time.monotonic() + seconds
        with self._reader() as consumer:
            for event in follow(consumer, f"{self.settings.topic_prefix}{topic}", self.settings.partitions):
                if event and wanted(event):
                    return event
                assert time.monotonic() < end, f"waited {seconds:.0f} s: {what}"
        raise AssertionError("unreachable: a topic has no end")

    def wait_published(self, services: Iterable[str] = SERVICES) -> None:
        """Wait until the services have published all that they committed."""
        until(lambda: self.unpublished(services) == 0, "all is published")

    def unpublished(self, services: Iterable[str] = SERVICES) -> int:
        """The number of committed events that wait to be published."""
        tables = [f"(SELECT count(*) FROM {SERVICES[name].package}_outbox)" for name in services]
        return int(self.value(f"SELECT {' + '.join(tables)}"))

    def wait_answer(self, ce_id: str | None, topic: Topic = Topic.BACKFILL_EVENTS) -> Event:
        """Wait for the reply to a message."""
        return self.wait_event(topic, lambda e: e.body.get("in_reply_to") == ce_id, f"an answer to {ce_id}")

    # shortcuts

    def apply(self, definition: PipelineDefinition) -> None:
        """Apply a pipeline and wait for the reply."""
        ce_id = self.publish(Topic.PIPELINES, definition.name, PipelineApplied(pipeline=definition))
        self.wait_answer(ce_id, Topic.PIPELINE_EVENTS)

    def request(self, pipeline: str, first: str, last: str, *, id: str | None = None, **more: Any) -> str:
        """Publish a request. Returns its id."""
        id = id or f"b-{uuid.uuid4().hex[:8]}"
        self.publish(
            Topic.BACKFILL_REQUESTS,
            id,
            BackfillRequested.model_validate({"pipeline": pipeline, "from": first, "to": last, **more}),
        )
        return id

    def outcome(self, id: str) -> Event:
        """Wait for the reply to the request."""
        return self.wait_event(
            Topic.BACKFILL_EVENTS,
            lambda e: e.key == id and e.body["type"] in ("BackfillPlanned", "BackfillRejected"),
            f"an answer to {id}",
        )

    def wait_state(self, id: str, *states: str, seconds: float = WAIT_SECONDS) -> str:
        """Wait until the backfill is in one of ``states``. Returns the state."""
        found: list[str] = [""]

        def check() -> bool:
            rows = self.query("SELECT state FROM backfill WHERE id = %s", id)
            found[0] = rows[0]["state"] if rows else ""
            return found[0] in states

        def detail() -> str:
            return f"it is {found[0]!r}: {self.runs_by_state(id)}"

        until(check, f"backfill {id} is {' or '.join(states)}", detail, seconds)
        return found[0]

    def runs_by_state(self, id: str) -> dict[str, int]:
        """The number of a backfill's runs in each state."""
        rows = self.query("SELECT state, count(*) AS n FROM run WHERE backfill_id = %s GROUP BY state", id)
        return {row["state"]: row["n"] for row in rows}


def path_of(tree: Path) -> dict[str, str]:
    """The environment for importing another source tree's code."""
    return (
        {} if tree == ROOT else {"PYTHONPATH": os.pathsep.join(str(tree / part) for part in ("shared", "services", ""))}
    )


def until(
    condition: Callable[[], bool], what: str, detail: Callable[[], str] = lambda: "", seconds: float = WAIT_SECONDS
) -> None:
    """Poll until the condition holds. Fails after ``seconds`` with ``what`` and ``detail``."""
    end = time.monotonic() + seconds
    pause = 0.02
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s: {what} {detail()}"
        # Polling, because other processes' rows and events offer nothing to wait on. The longer it takes, the rarer.
        time.sleep(pause)
        pause = min(pause * 1.2, 0.25)
