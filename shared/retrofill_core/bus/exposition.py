"""A service's HTTP endpoints: ``/metrics``, ``/healthz`` and ``/readyz`` for probes, and its own pages.

With the checks that these probes make, and the gauges that every service exports.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from prometheus_client import make_wsgi_app
from sqlalchemy import Engine, Select, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.bus import metrics
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.contract.topics import Service
from retrofill_core.store.tables import SERVICE_TABLES, ServiceTables

log = get_log(__name__)
# By the name of a check: what is wrong, or None.
Checks = Callable[[], Mapping[str, str | None]]
# The rest of the path and the query → status, headers, body.
Page = Callable[[str, str], tuple[str, Mapping[str, str], bytes]]
EVERYWHERE = "0.0.0.0"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes arrive every few seconds."""


class Exposition:
    """The HTTP server of one service."""

    def __init__(self, host: str, port: int, address: str | None = None) -> None:
        """``address``: where others reach it, if that is not ``host``."""
        self._checks: dict[str, Checks] = {}
        self._pages: dict[str, Page] = {}
        self._metrics: WSGIApplication = make_wsgi_app()
        self._server = make_server(host, port, self._answer, _Server, _Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._address = address or (_own_address() if host == EVERYWHERE else host)

    @property
    def url(self) -> str:
        """Base URL, with the port that was bound."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def serve(self, prefix: str, page: Page) -> str:
        """Serve a page for all paths with a prefix, like ``/logs/``; returns its URL for others."""
        self._pages[prefix] = page
        return f"http://{self._address}:{self._server.server_address[1]}{prefix}"

    def start(self, health: Checks, ready: Checks) -> None:
        """Start serving in a daemon thread."""
        self._checks = {"/healthz": health, "/readyz": ready}
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and close the socket."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        for prefix, page in self._pages.items():
            if path.startswith(prefix):
                status, headers, body = page(path.removeprefix(prefix), environ.get("QUERY_STRING", ""))
                start_response(status, list(headers.items()))
                return [body]
        checks = self._checks.get(path)
        if checks is None:
            # Pages are not listed: their prefixes may be secret.
            return _json(start_response, "404 Not Found", {"available": ["/metrics", *self._checks]})
        found = checks()
        failed = {name: why for name, why in found.items() if why is not None}
        if failed:
            log.warning("check_failed", path=path, **failed)
        status = "503 Service Unavailable" if failed else "200 OK"
        return _json(start_response, status, {name: why or "ok" for name, why in found.items()})


def _json(start_response: StartResponse, status: str, body: Mapping[str, Any]) -> list[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode() + b"\n"]


def _own_address() -> str:
    """This machine's address, as others in its network know it; its name if that is not known here."""
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


# Longer than the services' ``transaction_timeout`` in Postgres.
STUCK_SECONDS = 150.0
PROBE_SECONDS = 3.0
# Probes within this time of each other get the same answer.
FRESH_SECONDS = 1.0


@dataclass
class Health:
    """The checks of one service.

    ``busy_for``: how long the worker's current step has been running, in seconds. ``problems``: why
    shards cannot continue. ``relay``: why Kafka refuses events although it answers.
    """

    engine: Engine
    admin: Callable[[], AdminClient]
    threads: Sequence[threading.Thread]
    busy_for: Callable[[], float]
    problems: Callable[[], Mapping[str, str | None]]
    relay: Callable[[], str | None]
    # Why the service must not work on this Postgres.
    history: Callable[[], str | None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ready: Mapping[str, str | None] = field(default_factory=dict)
    _ready_at: float = float("-inf")

    def alive(self) -> dict[str, str | None]:
        """Problems that only a restart fixes: a thread that exited, or a stuck worker."""
        busy = self.busy_for()
        stuck = f"busy with one step for {busy:.0f} s" if busy > STUCK_SECONDS else None
        ended: dict[str, str | None] = {t.name: None if t.is_alive() else "the thread exited" for t in self.threads}
        return {**ended, "worker": stuck}

    def ready(self) -> Mapping[str, str | None]:
        """``alive``, and whether Postgres and Kafka answer and the work can continue."""
        with self._lock:
            if time.monotonic() - self._ready_at > FRESH_SECONDS:
                self._ready = {
                    **self.alive(),
                    **self.problems(),
                    "postgres": self._postgres(),
                    "kafka": self._kafka(),
                    "events": self.relay(),
                    "history": self.history(),
                }
                self._ready_at = time.monotonic()
            return self._ready

    def _postgres(self) -> str | None:
        try:
            with self.engine.connect() as conn:
                conn.execute(text(f"SET LOCAL statement_timeout = {int(PROBE_SECONDS * 1000)}"))
                conn.execute(text("SELECT 1"))
        except SQLAlchemyError as e:
            return first_line(e)
        return None

    def _kafka(self) -> str | None:
        try:
            self.admin().list_topics(timeout=PROBE_SECONDS)
        except KafkaException as e:
            return str(e.args[0].str() if e.args else e)
        return None


class OwnedShards(Protocol):
    """What the gauges show of an instance's shards; from any thread."""

    def owned(self) -> Sequence[int]:
        """Partitions of the shards that this instance owns."""

    def shards_by_state(self) -> Mapping[str, float]:
        """The number of shards that are assigned to it."""


def register_gauges(service: Service, engine: Engine, shards: OwnedShards, topics: TopicIds) -> None:
    """Export the gauges. Values are read on a scrape."""
    own = SERVICE_TABLES[service.package]

    def lag() -> dict[str, float]:
        return _lag(service, own, engine, list(shards.owned()), topics)

    def read(query: Select[Any]) -> Callable[[], dict[str, float]]:
        return lambda: {service.name: _scalar(engine, query)}

    refused = read(select(func.count()).select_from(own.refused))
    waiting = read(select(func.count()).select_from(own.outbox))
    age = func.extract("epoch", func.clock_timestamp() - func.min(own.outbox.c.created_at))
    oldest = read(select(func.coalesce(age, 0)))
    for gauge in (
        # Without it, nothing would show a shard that is not owned: it has no lag.
        metrics.Polled(
            "retrofill_shards",
            "Shards that are assigned to this instance",
            "state",
            shards.shards_by_state,
            seconds=0.0,
        ),
        metrics.Polled("retrofill_lag_messages", "Offsets of owned shards not yet handled, by topic", "topic", lag),
        metrics.Polled(
            "retrofill_outbox_refused_events", "Dead letters that Kafka refused, kept in Postgres", "service", refused
        ),
        metrics.Polled("retrofill_outbox_events", "Events waiting to be published", "service", waiting),
        metrics.Polled(
            "retrofill_outbox_oldest_age_seconds", "Age of the oldest event waiting to be published", "service", oldest
        ),
    ):
        metrics.register(gauge)


def _lag(
    service: Service, own: ServiceTables, engine: Engine, partitions: list[int], topics: TopicIds
) -> dict[str, float]:
    found = {str(topic): 0.0 for topic in service.reads}
    if not partitions:
        return found
    ends = topics.ends.high_watermarks(dict.fromkeys(found, partitions))
    offset = own.offset.c
    query = select(offset.topic, offset.partition, offset.next_offset).where(offset.partition.in_(partitions))
    with engine.connect() as conn:
        for row in conn.execute(query):
            found[row.topic] += max(0, ends[row.topic, row.partition] - row.next_offset)
    return found


def _scalar(engine: Engine, query: Select[Any]) -> float:
    with engine.connect() as conn:
        return float(conn.execute(query).scalar_one())
