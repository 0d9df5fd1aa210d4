"""Bootstrap of one service: wires settings, clients, threads and the handler; nothing is built at import."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
import structlog
from confluent_kafka import KafkaException
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from retrofill.bus.announcer import Announcer, install
from retrofill.bus.crash import arm
from retrofill.bus.handler import Handler
from retrofill.bus.inbox import Inbox, Notified, Wake
from retrofill.bus.listener import Listener
from retrofill.bus.observability.diagnosis import why
from retrofill.bus.observability.exposition import Exposition
from retrofill.bus.observability.gauges import measure
from retrofill.bus.observability.health import Health
from retrofill.bus.poller import Poller
from retrofill.bus.relay.relay import Relay
from retrofill.bus.takeover import TopicIds
from retrofill.bus.went_back import Guard, check_marks
from retrofill.bus.worker.context import WorkerContext
from retrofill.bus.worker.loop import Loop
from retrofill.contract.topics import Service
from retrofill.logs import configure_logging
from retrofill.reading_settings import WrongSetting, read_settings
from retrofill.settings import NotConfigured, Settings
from retrofill.store import outbox
from retrofill.store.engine import make_engine
from retrofill.store.history import PostgresWentBack
from retrofill.store.installation import LimitsMissing, SchemaTooOld, check_limits, check_schema, read_installation
from retrofill.tracing import configure_tracing

log = structlog.get_logger(__name__)


class NotInitialised(Exception):
    """The database or Kafka does not fit what this service needs."""


@dataclass(frozen=True)
class Context:
    """What a handler is built from."""

    settings: Settings
    service: Service
    instance: str
    engine: Engine
    topic_ids: TopicIds
    partitions: int
    installation: str
    notified: Callable[[str, str], None]
    # Of every new connection to Postgres.
    check: Callable[[psycopg.Connection], None] = lambda _: None


MakeHandler = Callable[[Context], Handler]


def run_service(service: Service, make_handler: MakeHandler, channels: Sequence[str] = ()) -> int:
    """Run ``service`` until a signal ends it; returns the exit status."""
    try:
        settings = read_settings().acting_as(service.name)
    except WrongSetting as e:
        print(f"{service.name}: {e}", file=sys.stderr)  # noqa: T201 - there is no log yet
        return 1
    configure_logging(settings.log_level)
    configure_tracing(service.name)
    arm(settings.crash_point)
    try:
        _run(settings, service, make_handler, channels)
    except (NotInitialised, PostgresWentBack, LimitsMissing, NotConfigured, OSError) as e:
        log.error("not_started", error=str(e))
        print(f"{service.name}: {e}", file=sys.stderr)  # noqa: T201 - for whoever started it by hand
        return 1
    return 0


def _run(settings: Settings, service: Service, make_handler: MakeHandler, channels: Sequence[str]) -> None:
    instance = f"{service.name}-{socket.gethostname()}-{os.getpid()}"
    structlog.contextvars.bind_contextvars(service=service.name, pid=os.getpid())
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    dsn = settings.dsn_of(service.name)
    guard = Guard(stopping)
    engine = make_engine(dsn, instance, limited=True, check=guard.check)
    topic_ids = _topic_ids(settings, service, instance)
    installation, partitions = _wait_until_initialised(settings, instance, engine, topic_ids, stopping, guard)
    # Drivers are our children, and publish their reports where the shard's owner reads them.
    os.environ["RETROFILL_PARTITIONS"] = str(partitions)
    inbox = Inbox()
    context = Context(
        settings,
        service,
        instance,
        engine,
        topic_ids,
        partitions,
        installation,
        notified=lambda channel, payload: inbox.put(Notified(channel, payload)),
        check=guard.check,
    )
    handler = make_handler(context)
    poller = Poller(settings, service, instance, inbox)
    relay = Relay(settings, service, instance, engine, partitions, guard.trip)
    outbox_channel = outbox.channel(service.package)

    def heard(channel: str, payload: str) -> None:
        if channel in ("", outbox_channel):
            relay.wake()
        if channel != outbox_channel:
            inbox.put(Notified(channel, payload))

    announcer = Announcer(dsn, instance, heard)
    install(announcer)
    listener = Listener(dsn, instance, [outbox_channel, *channels], heard, known=lambda pid: pid == announcer.pid)
    loop = Loop(WorkerContext(settings, service, instance, engine, poller, handler, topic_ids, partitions), inbox)
    stopper = threading.Thread(target=_stop_when, args=(stopping, loop, inbox), name="stopper", daemon=True)
    threads = (poller, relay, listener, announcer, stopper)
    for thread in threads:
        thread.start()
    health = Health(engine, lambda: topic_ids.admin, threads, loop.busy_for, loop.troubles, relay.trouble, guard.reason)
    http = Exposition(settings.http_host, settings.http_port, health.alive, health.ready)
    http.start()
    measure(service, engine, loop.owned, topic_ids)
    ready = _ready_file(settings, service, http.url)
    log.info("started", instance=instance, partitions=partitions)
    try:
        loop.run()
    finally:
        ready.unlink(missing_ok=True)
        http.stop()
        handler.close()
        poller.stop()
        relay.stop()
        listener.stop()
        announcer.stop()
        engine.dispose()
        log.info("stopped")
    if (reason := guard.reason()) is not None:
        raise PostgresWentBack(reason)


def _stop_when(stopping: threading.Event, loop: Loop, inbox: Inbox) -> None:
    """A signal handler may only set an event: what wakes the loop takes locks."""
    stopping.wait()
    loop.stop()
    inbox.put(Wake())


def _ready_file(settings: Settings, service: Service, url: str) -> Path:
    """Says that this process works; whoever started it may wait for the file."""
    folder = settings.home.absolute() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{service.name}.{os.getpid()}.ready"
    path.write_text(json.dumps({"http": url}))
    return path


def _wait(stopping: threading.Event, seconds: float) -> None:
    stopping.wait(seconds)


def _topic_ids(settings: Settings, service: Service, instance: str) -> TopicIds:
    """The first client of Kafka. Raises ``NotInitialised`` where the settings make none, whatever the brokers say."""
    try:
        return TopicIds(settings, service, instance)
    except KafkaException as e:
        raise NotInitialised(f"no client of Kafka can be made: {why(settings, e)}") from e


def _wait_until_initialised(
    settings: Settings,
    instance: str,
    engine: Engine,
    topic_ids: TopicIds,
    stopping: threading.Event,
    guard: Guard,
) -> tuple[str, int]:
    """The installation's id and its number of partitions, once both servers answer and the schema is one to work with.

    Raises ``NotInitialised``, and ``PostgresWentBack`` where the servers contradict each other.
    """

    def say(state: RetryCallState) -> None:
        if (reason := guard.reason()) is not None:
            raise PostgresWentBack(reason)
        if stopping.is_set():
            raise SystemExit(0)
        error = state.outcome.exception() if state.outcome else None
        waiting_for = "waiting_for_init" if isinstance(error, SchemaTooOld) else "waiting_for_servers"
        said = why(settings, error) if isinstance(error, KafkaException) else str(error)
        log.warning(waiting_for, error=said.split("\n")[0])

    for attempt in Retrying(
        retry=retry_if_exception_type((SQLAlchemyError, KafkaException, OSError, SchemaTooOld)),
        wait=wait_exponential(0.1, max=3),
        before_sleep=say,
        sleep=lambda seconds: _wait(stopping, seconds),
    ):
        with attempt:
            with engine.connect() as conn:
                installation = read_installation(conn)
                if installation is not None:
                    check_schema(conn)
                check_limits(conn)
            if installation is None:
                raise NotInitialised("the database is not initialised: run 'retrofill init' or 'retrofill up'")
            _check_partitions(settings.topic_prefix, topic_ids.refresh(), installation.partitions)
            check_marks(settings, instance, engine)
            return installation.id, installation.partitions
    raise AssertionError("unreachable: retried for ever")


def _check_partitions(prefix: str, counts: Mapping[str, int], fixed: int) -> None:
    """Raises ``NotInitialised`` where a topic lacks partitions. More than were fixed at init are fine (``bus/added.py``)."""
    for topic, count in counts.items():
        if count < fixed:
            raise NotInitialised(
                f"topic {prefix}{topic} has {count} partitions, {fixed} were fixed at init: add the missing ones with "
                f"'kafka-topics --alter --topic {prefix}{topic} --partitions {fixed}'"
            )
        if count > fixed:
            log.warning("partitions_added", topic=topic, partitions=count, used=fixed)
