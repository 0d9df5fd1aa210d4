"""Bootstrap of one service: wires settings, clients, threads and the handler."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import psycopg
from confluent_kafka import KafkaException
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from retrofill.log import bound, configure, get_log
from retrofill.system.crash import arm
from retrofill.system.processes import on_signals
from retrofill.tracing import configure_tracing
from retrofill_core.bus.clients import explain
from retrofill_core.bus.exposition import Exposition, Health, Page, register_gauges
from retrofill_core.bus.handler import Handler
from retrofill_core.bus.inbox import Inbox, Notified, Wake
from retrofill_core.bus.notifications import Announcer, Listener, install
from retrofill_core.bus.poller import Poller
from retrofill_core.bus.relay.relay import Relay
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.bus.went_back import Guard, check_marks
from retrofill_core.bus.worker.context import WorkerContext
from retrofill_core.bus.worker.loop import Loop
from retrofill_core.contract.topics import Service
from retrofill_core.settings import NotConfigured, Settings, WrongSetting, read_settings
from retrofill_core.startup import write_ready
from retrofill_core.store import outbox
from retrofill_core.store.engine import (
    LimitsMissing,
    SchemaTooOld,
    check_limits,
    check_schema,
    make_engine,
    read_installation,
)
from retrofill_core.store.history import PostgresWentBack

log = get_log(__name__)


class NotInitialized(Exception):
    """The database or Kafka does not have what this service needs."""


@dataclass(frozen=True)
class Context:
    """What a handler is built from. ``partitions``: as fixed at init; ``installation``: its id."""

    settings: Settings
    service: Service
    instance: str
    engine: Engine
    topic_ids: TopicIds
    partitions: int
    installation: str
    # Delivers a notification (channel, payload) to this process's worker.
    notified: Callable[[str, str], None]
    # Serves a page over HTTP under a prefix; returns its URL.
    serve: Callable[[str, Page], str]
    # Runs on every new connection to Postgres.
    check: Callable[[psycopg.Connection], None] = lambda _: None


MakeHandler = Callable[[Context], Handler]


def run_service(service: Service, make_handler: MakeHandler, channels: Sequence[str] = ()) -> int:
    """Run ``service`` until SIGTERM or SIGINT; returns the exit status.

    ``channels``: Postgres channels whose notifications the handler receives.
    """
    try:
        settings = read_settings().acting_as(service.name)
    except WrongSetting as e:
        print(f"{service.name}: {e}", file=sys.stderr)  # noqa: T201 - there is no log yet
        return 1
    configure(settings.log_level)
    configure_tracing(service.name)
    arm(settings.crash_point)
    with bound(service=service.name, pid=os.getpid()):
        try:
            _run(settings, service, make_handler, channels)
        except (NotInitialized, PostgresWentBack, LimitsMissing, NotConfigured, OSError) as e:
            log.error("not_started", error=str(e))
            print(f"{service.name}: {e}", file=sys.stderr)  # noqa: T201 - for a service started by hand
            return 1
    return 0


def name_of_instance(service: Service) -> str:
    """The name of this process among all of its service. In containers, a restarted one has it again."""
    return f"{service.name}-{socket.gethostname()}-{os.getpid()}"


def _run(settings: Settings, service: Service, make_handler: MakeHandler, channels: Sequence[str]) -> None:
    instance = name_of_instance(service)
    stopping = threading.Event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda _: stopping.set())
    guard = Guard(settings, service, instance, stopping)
    engine = make_engine(settings.dsn_of(service.name), instance, limited=True, check=guard.check)
    topic_ids = _topic_ids(settings, service, instance)
    installation, partitions = _wait_until_initialized(settings, instance, engine, topic_ids, stopping, guard)
    # Drivers are child processes and must publish their reports to the shard owner's partition.
    os.environ["RETROFILL_PARTITIONS"] = str(partitions)
    inbox = Inbox()
    http = Exposition(settings.http_host, settings.http_port, settings.http_address)
    context = Context(
        settings,
        service,
        instance,
        engine,
        topic_ids,
        partitions,
        installation,
        notified=lambda channel, payload: inbox.put(Notified(channel, payload)),
        serve=http.serve,
        check=guard.check,
    )
    process = _wire(context, make_handler(context), inbox, channels, guard)
    stopper = threading.Thread(target=_stop_when, args=(stopping, process.loop, inbox), name="stopper", daemon=True)
    compare = partial(check_marks, settings, instance, engine)
    watcher = threading.Thread(target=guard.watch, args=(compare,), name="guard", daemon=True)
    _serve(context, process, (stopper, watcher), guard, http)
    if (reason := guard.reason()) is not None:
        raise PostgresWentBack(reason)


@dataclass(frozen=True)
class _Process:
    handler: Handler
    loop: Loop
    poller: Poller
    relay: Relay
    listener: Listener
    announcer: Announcer


def _wire(context: Context, handler: Handler, inbox: Inbox, channels: Sequence[str], guard: Guard) -> _Process:
    settings, service, instance, engine = context.settings, context.service, context.instance, context.engine
    poller = Poller(settings, service, instance, inbox)
    relay = Relay(settings, service, instance, engine, context.partitions, guard.trip)
    outbox_channel = outbox.channel(service.package)

    def on_notification(channel: str, payload: str) -> None:
        if channel in ("", outbox_channel):
            relay.wake(later=payload == outbox.LATER)
        if channel != outbox_channel:
            context.notified(channel, payload)

    worker = WorkerContext(settings, service, instance, engine, poller, handler, context.topic_ids, context.partitions)
    loop = Loop(worker, inbox)

    def concerns_others(channel: str) -> bool:
        if channel == outbox_channel:
            return not relay.is_active()
        return channel not in handler.of_owners or len(loop.owned()) < context.partitions

    dsn = settings.dsn_of(service.name)
    announcer = Announcer(dsn, instance, on_notification, concerns_others)
    install(announcer)
    listener = Listener(
        dsn, instance, [outbox_channel, *channels], on_notification, is_own=lambda pid: pid == announcer.pid
    )
    return _Process(handler, loop, poller, relay, listener, announcer)


def _serve(
    context: Context, process: _Process, until: Sequence[threading.Thread], guard: Guard, http: Exposition
) -> None:
    """Start the threads and the HTTP server, run the loop until it stops, then close everything."""
    settings, topic_ids, loop, relay = context.settings, context.topic_ids, process.loop, process.relay
    threads = (process.poller, relay, process.listener, process.announcer, *until)
    for thread in threads:
        thread.start()
    health = Health(
        context.engine, lambda: topic_ids.admin, threads, loop.busy_for, loop.problems, relay.problem, guard.reason
    )
    http.start(health.alive, health.ready)
    register_gauges(context.service, context.engine, loop, topic_ids)
    ready = write_ready(settings.home, context.service.name, http.url)
    log.info("started", instance=context.instance, partitions=context.partitions)
    try:
        loop.run()
    finally:
        ready.unlink(missing_ok=True)
        # Others take the shards over while this process finishes what it has begun, which may take long:
        # its metrics and logs stay readable.
        process.poller.stop()
        process.handler.close()
        relay.stop()
        process.listener.stop()
        process.announcer.stop()
        http.stop()
        context.engine.dispose()
        log.info("stopped")


def _stop_when(stopping: threading.Event, loop: Loop, inbox: Inbox) -> None:
    """Wait in a thread: a signal handler must not take the locks that waking the loop needs."""
    stopping.wait()
    loop.stop()
    inbox.put(Wake())


def _topic_ids(settings: Settings, service: Service, instance: str) -> TopicIds:
    """Create the first Kafka client. Raises ``NotInitialized`` where the settings are unusable."""
    try:
        return TopicIds(settings, service, instance)
    except KafkaException as e:
        raise NotInitialized(f"cannot create a Kafka client: {explain(settings, e)}") from e


def _wait_until_initialized(
    settings: Settings,
    instance: str,
    engine: Engine,
    topic_ids: TopicIds,
    stopping: threading.Event,
    guard: Guard,
) -> tuple[str, int]:
    """Wait for both servers and the schema; returns the installation's id and partition count.

    Raises ``NotInitialized``, and ``PostgresWentBack`` where the servers contradict each other.
    """

    def before_sleep(state: RetryCallState) -> None:
        if (reason := guard.reason()) is not None:
            raise PostgresWentBack(reason)
        if stopping.is_set():
            raise SystemExit(0)
        _log_waiting(settings, state.outcome.exception() if state.outcome else None)

    retrying = Retrying(
        retry=retry_if_exception_type((SQLAlchemyError, KafkaException, OSError, SchemaTooOld)),
        wait=wait_exponential(0.1, max=3),
        before_sleep=before_sleep,
        sleep=lambda seconds: _wait(stopping, seconds),
    )
    return retrying(_check_initialized, settings, instance, engine, topic_ids)


def _wait(stopping: threading.Event, seconds: float) -> None:
    stopping.wait(seconds)


def _log_waiting(settings: Settings, error: BaseException | None) -> None:
    event = "waiting_for_init" if isinstance(error, SchemaTooOld) else "waiting_for_servers"
    reason = explain(settings, error) if isinstance(error, KafkaException) else str(error)
    log.warning(event, error=reason.split("\n")[0])


def _check_initialized(settings: Settings, instance: str, engine: Engine, topic_ids: TopicIds) -> tuple[str, int]:
    with engine.connect() as conn:
        installation = read_installation(conn)
        if installation is not None:
            check_schema(conn)
        check_limits(conn)
    if installation is None:
        raise NotInitialized("the database is not initialized: run 'retrofill init' or 'retrofill up'")
    _check_partitions(settings.topic_prefix, topic_ids.refresh(), installation.partitions)
    for topic in sorted(check_marks(settings, instance, engine)):
        log.warning("cursor_not_readable", topic=topic, what_to_do="run 'retrofill init' to grant read access")
    return installation.id, installation.partitions


def _check_partitions(prefix: str, counts: Mapping[str, int], fixed: int) -> None:
    """Raise ``NotInitialized`` for missing partitions; added ones are fine (``take_over_added``)."""
    for topic, count in counts.items():
        if count < fixed:
            raise NotInitialized(
                f"topic {prefix}{topic} has {count} partitions, {fixed} were fixed at init: add the missing ones with "
                f"'kafka-topics --alter --topic {prefix}{topic} --partitions {fixed}'"
            )
        if count > fixed:
            log.warning("partitions_added", topic=topic, partitions=count, used=fixed)
