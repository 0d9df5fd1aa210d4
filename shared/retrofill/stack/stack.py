"""Up, down and status of one embedded stack."""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from retrofill.bus.topics import SERVICES
from retrofill.init import initialise
from retrofill.settings import ENDPOINTS_FILE, Settings, write_endpoints
from retrofill.stack import java, kafka, ports, postgres, processes, spark
from retrofill.stack.layout import KAFKA, PARTS, POSTGRES, SERVERS, SPARK, SUPERVISOR, Identity, Layout
from retrofill.stack.supervision import PartStatus, Supervisor, Unreachable

EMBEDDED_PARTITIONS = 4
SERVER_SECONDS = 120.0
SERVICE_SECONDS = 60.0
T = TypeVar("T")
Say = Callable[[str, float], None]


class PartFailed(Exception):
    """A part did not start; the text is one line with its log."""


@dataclass(frozen=True)
class Status:
    """What is known of a stack."""

    parts: list[PartStatus]
    endpoints: dict[str, Any]


class Stack:
    """The embedded stack of ``settings.home``; ``servers`` and ``services`` are what of it to supervise."""

    def __init__(
        self,
        settings: Settings,
        servers: tuple[str, ...] = SERVERS,
        services: tuple[str, ...] = tuple(SERVICES),
    ) -> None:
        self._settings = settings
        self._layout = Layout(settings.home.absolute())
        self._servers = servers
        self._services = services

    # up

    def up(self, say: Say, progress: Callable[[str], None]) -> bool:
        """Start what does not run; False where everything ran. ``say(part, seconds)`` as each gets ready.

        Raises ``PartFailed``; what a first start had started is stopped again.
        """
        self._layout.make()
        with self._only_one():
            identity = self._layout.make_identity()
            supervisor = Supervisor(self._layout, identity)
            if supervisor.answers():
                if self._all_run(supervisor):
                    return False
            else:
                # Nobody supervises what a crash left behind.
                processes.end_all(self._layout, identity.id)
                self._launch(supervisor, identity, progress)
            try:
                self._start(supervisor, identity, say)
            except BaseException:
                self._stop(identity)
                raise
            return True

    def _launch(self, supervisor: Supervisor, identity: Identity, progress: Callable[[str], None]) -> None:
        """Prepare the servers and start the supervisor."""
        chosen = self._choose_ports()
        runtime = _part(KAFKA, self._layout, lambda: java.find(self._settings))
        jars = _part(KAFKA, self._layout, lambda: kafka.fetch(self._settings, runtime, progress))
        commands = {
            POSTGRES: _part(
                POSTGRES, self._layout, lambda: postgres.prepare(self._layout, identity, chosen["postgres"])
            ),
            KAFKA: _part(
                KAFKA,
                self._layout,
                lambda: kafka.prepare(self._layout, identity, self._settings, runtime, jars, chosen),
            ),
            SPARK: spark.prepare(self._layout, self._settings, runtime, chosen["spark"]),
            **{name: _service_command(name) for name in self._services},
        }
        self._write_endpoints(identity, chosen)
        _part(SUPERVISOR, self._layout, lambda: supervisor.start(commands))

    def _start(self, supervisor: Supervisor, identity: Identity, say: Say) -> None:
        began = time.monotonic()
        settings = Settings(home=self._layout.home)
        chosen = self._endpoints()["ports"]
        for name in self._servers:
            supervisor.start_part(name)
        self._await(supervisor, POSTGRES, lambda: _database_answers(identity, chosen["postgres"]))
        say(POSTGRES, time.monotonic() - began)
        self._await(supervisor, KAFKA, lambda: ports.answers(chosen["kafka"]))
        say(KAFKA, time.monotonic() - began)
        _part(KAFKA, self._layout, lambda: initialise(settings))
        for name in self._services:
            supervisor.start_part(name)
        for name in self._services:
            self._await(supervisor, name, partial(self._is_ready, supervisor, name), SERVICE_SECONDS)
            say(name, time.monotonic() - began)
        if SPARK in self._servers:
            self._await(supervisor, SPARK, lambda: ports.answers(chosen["spark"]))
            say(SPARK, time.monotonic() - began)

    def _await(
        self, supervisor: Supervisor, name: str, ready: Callable[[], bool], seconds: float = SERVER_SECONDS
    ) -> None:
        """Wait until a part is ready. Raises ``PartFailed`` where it gave up or takes too long."""
        waiting = Retrying(
            retry=retry_if_result(lambda is_ready: not is_ready),
            wait=wait_fixed(0.1),
            stop=stop_after_delay(seconds),
            retry_error_callback=lambda _: False,
        )
        log = self._layout.log(name)

        def check() -> bool:
            part = supervisor.status()[name]
            if part.state in ("failed", "stopped") or part.restarts > 2:
                raise PartFailed(f"{name} did not start: {_last_line(log) or part.said}; log: {log}")
            return ready()

        if not waiting(check):
            raise PartFailed(f"{name} is not ready after {seconds:.0f} s: {_last_line(log)}; log: {log}")

    def _is_ready(self, supervisor: Supervisor, name: str) -> bool:
        return (self._layout.run / f"{name}.{supervisor.status()[name].pid}.ready").exists()

    def _all_run(self, supervisor: Supervisor) -> bool:
        status = supervisor.status()
        return all(status[name].state == "running" for name in (*self._servers, *self._services)) and all(
            self._is_ready(supervisor, name) for name in self._services
        )

    def _choose_ports(self) -> dict[str, int]:
        """The ports of the last start where they are free, else the preferred or next free ones."""
        last = self._endpoints().get("ports", {})
        wanted = {
            "kafka": self._settings.kafka_port,
            "kafka_controller": self._settings.kafka_port + 1,
            "postgres": self._settings.postgres_port,
            "spark": self._settings.spark_port,
        }
        chosen: dict[str, int] = {}
        for name, preferred in wanted.items():
            before = last.get(name)
            free = before is not None and ports.is_free(before)
            chosen[name] = before if free else ports.choose(preferred, set(chosen.values()))
        return chosen

    def _write_endpoints(self, identity: Identity, chosen: dict[str, int]) -> None:
        owner, services = postgres.dsns(identity, chosen["postgres"])
        before = self._endpoints()
        set_by_user = "partitions" in self._settings.model_fields_set
        partitions = self._settings.partitions if set_by_user else EMBEDDED_PARTITIONS
        write_endpoints(
            self._layout.home,
            {
                "kafka_bootstrap_servers": f"127.0.0.1:{chosen['kafka']}",
                "postgres_dsn": owner,
                "postgres_service_dsns": services,
                "spark_remote": f"sc://127.0.0.1:{chosen['spark']}",
                "topic_prefix": self._settings.topic_prefix,
                "partitions": before.get("partitions", partitions),
                "replication_factor": 1,
                "ports": chosen,
            },
        )

    def _endpoints(self) -> dict[str, Any]:
        path = self._layout.home / ENDPOINTS_FILE
        return dict(json.loads(path.read_text())) if path.exists() else {}

    # down

    def down(self) -> bool:
        """Stop everything, also what a crash left behind; False where nothing ran."""
        if not self._layout.home.exists():
            return False
        with self._only_one():
            identity = self._layout.identity()
            return identity is not None and self._stop(identity)

    def _stop(self, identity: Identity) -> bool:
        supervisor = Supervisor(self._layout, identity)
        ran = False
        if supervisor.answers():
            ran = True
            self._stop_supervised(supervisor)
        return bool(processes.end_all(self._layout, identity.id)) or ran

    def _stop_supervised(self, supervisor: Supervisor) -> None:
        try:
            pid = supervisor.pid()
            known = supervisor.status()
            # Those who use the servers first: they say goodbye through them.
            for name in (*self._services, SPARK, KAFKA, POSTGRES):
                if name in known:
                    supervisor.stop_part(name)
            supervisor.shutdown()
            psutil.Process(pid).wait(timeout=10)
        except (*Unreachable, psutil.Error):
            # It died meanwhile, or takes too long: what is left is found by its marker.
            return

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        """One up or down of a home at a time; the second waits."""
        with (self._layout.home / "up.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # status

    def status(self) -> Status:
        """The state of every part; all are stopped where nothing runs."""
        identity = self._layout.identity()
        known: dict[str, PartStatus] = {}
        if identity is not None:
            try:
                known = Supervisor(self._layout, identity).status()
            except Unreachable:
                known = {}
        stopped = [known.get(name) or PartStatus(name, "stopped", None, 0, None) for name in PARTS]
        return Status(stopped, self._endpoints())

    def log(self, name: str) -> Path:
        """The log file of a part."""
        return self._layout.log(name)


def _service_command(name: str) -> list[str]:
    return [sys.executable, "-m", SERVICES[name].package]


def _database_answers(identity: Identity, port: int) -> bool:
    try:
        postgres.make_database(identity, port)
    except psycopg.OperationalError:
        return False
    return True


def _part(name: str, layout: Layout, do: Callable[[], T]) -> T:
    """Do something for a part; its failure is the part's, in one line."""
    try:
        return do()
    except (OSError, java.NoJava, kafka.FetchFailed) as e:
        raise PartFailed(f"{name} did not start: {e}; log: {layout.log(name)}") from e
    except Exception as e:
        raise PartFailed(f"{name} did not start: {type(e).__name__}: {str(e).splitlines()[0]}") from e


def _last_line(log: Path) -> str:
    if not log.exists():
        return ""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if any(word in line for word in ("Exception", "FATAL", "ERROR", "error", "Error"))]
    return (told or lines or [""])[-1][:200]
