"""Starts, stops and inspects one embedded stack."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from retrofill.spark import java
from retrofill_core.contract.topics import CONSOLE, SERVICES
from retrofill_core.setting_types import ENDPOINTS_FILE, write_endpoints
from retrofill_core.settings import Settings
from retrofill_core.startup import command_of
from retrofill_tools.admin.init import InstallationDiffers, initialize
from retrofill_tools.stack import kafka, kafka_auth, ports, postgres, processes, spark
from retrofill_tools.stack.layout import ADDRESSES, KAFKA, PARTS, POSTGRES, SERVERS, SPARK, SUPERVISOR, Identity, Layout
from retrofill_tools.stack.maven import FetchFailed, Maven
from retrofill_tools.stack.supervision import PartStatus, Supervisor, Unreachable

EMBEDDED_PARTITIONS = 4
SERVER_SECONDS = 120.0
SERVICE_SECONDS = 60.0
# How often a part may crash during its start.
MAX_RESTARTS = 2
T = TypeVar("T")
Say = Callable[[str, float], None]


class PartFailed(Exception):
    """A part did not start. The message is one line and names its log."""


@dataclass(frozen=True)
class Status:
    parts: list[PartStatus]
    endpoints: dict[str, Any]


class Stack:
    """The embedded stack of ``settings.home``; supervises these ``servers`` and ``services``."""

    def __init__(
        self,
        settings: Settings,
        servers: tuple[str, ...] = SERVERS,
        services: tuple[str, ...] = (*SERVICES, CONSOLE),
    ) -> None:
        self._settings = settings
        self._layout = Layout(settings.home.absolute())
        self._servers = servers
        self._services = services
        self._restarts_before: dict[str, int] = {}

    def up(self, say: Say, progress: Callable[[str], None]) -> bool:
        """Start all parts that are not running. Returns False if all were running already.

        Calls ``say(part, seconds)`` when a part is ready. Raises ``PartFailed``; if nothing was
        running before, everything is stopped again.
        """
        began = time.monotonic()
        self._layout.make()
        with self._exclusive():
            identity = self._layout.make_identity()
            supervisor = Supervisor(self._layout, identity)
            if supervisor.answers():
                if self._all_run(supervisor):
                    return False
                # Running parts are in use and keep running, even if the others fail to start.
                self._start(supervisor, identity, say, began)
                return True
            # A crash may have left unsupervised processes.
            processes.end_all(self._layout, identity.id)
            try:
                with ports.Reservations() as reserved:
                    self._launch(supervisor, identity, reserved, progress)
                    self._start(supervisor, identity, say, began)
            except BaseException:
                self._stop(identity)
                raise
            return True

    def _launch(
        self, supervisor: Supervisor, identity: Identity, reserved: ports.Reservations, progress: Callable[[str], None]
    ) -> None:
        """Prepare the servers and start the supervisor."""
        layout, settings = self._layout, self._settings
        chosen = self._choose_ports(reserved)
        environment = processes.environment(layout, identity.id)
        runtime = _part(KAFKA, layout, lambda: java.find(settings))
        maven = Maven(settings, runtime, progress, environment)
        jars = _part(KAFKA, layout, lambda: maven.fetch("Kafka", kafka.BROKER))
        prepare: dict[str, Callable[[], list[str]]] = {
            POSTGRES: lambda: postgres.prepare(layout, identity, chosen["postgres"], environment),
            KAFKA: lambda: kafka.prepare(layout, identity, settings, runtime, jars, chosen, environment),
            SPARK: lambda: spark.prepare(layout, settings, maven, chosen["spark"]),
        }
        with ThreadPoolExecutor() as pool:
            prepared = {name: pool.submit(_part, name, layout, prepare[name]) for name in SERVERS}
        commands = {name: done.result() for name, done in prepared.items()}
        commands |= {name: _service_command(name, chosen["console"]) for name in self._services}
        self._write_endpoints(identity, chosen, _part(SPARK, layout, lambda: spark.of_scripts(settings, maven)))
        _part(SUPERVISOR, self._layout, lambda: supervisor.start(commands, settings.drain_seconds))
        reserved.keep(supervisor.pid(), identity.id)

    def _start(self, supervisor: Supervisor, identity: Identity, say: Say, began: float) -> None:
        endpoints = self._endpoints()
        chosen = endpoints["ports"]
        settings = Settings(home=self._layout.home, **{name: endpoints[name] for name in ADDRESSES})
        self._restarts_before = {name: part.restarts for name, part in supervisor.status().items()}
        for name in self._servers:
            supervisor.start_part(name)
        self._await(supervisor, POSTGRES, lambda: _database_answers(identity, chosen["postgres"]))
        say(POSTGRES, time.monotonic() - began)
        self._await(supervisor, KAFKA, lambda: ports.answers(chosen["kafka"]))
        say(KAFKA, time.monotonic() - began)
        auth = settings.kafka_security_protocol != "PLAINTEXT"
        self._initialize(kafka_auth.as_admin(settings, identity.passwords) if auth else settings)
        for name in self._services:
            supervisor.start_part(name)
        for name in self._services:
            self._await(supervisor, name, partial(self._is_ready, supervisor, name), SERVICE_SECONDS)
            say(name, time.monotonic() - began)
        if SPARK in self._servers:
            self._await(supervisor, SPARK, lambda: ports.answers(chosen["spark"]))
            say(SPARK, time.monotonic() - began)

    def _initialize(self, settings: Settings) -> None:
        try:
            initialize(settings)
        except InstallationDiffers as e:
            raise PartFailed(str(e)) from e
        except Exception as e:
            raise PartFailed(f"the stack could not be initialized: {_one_line(e)}") from e

    def _await(
        self, supervisor: Supervisor, name: str, ready: Callable[[], bool], seconds: float = SERVER_SECONDS
    ) -> None:
        """Wait until a part is ready. Raises ``PartFailed`` if it fails or takes too long."""
        waiting = Retrying(
            retry=retry_if_result(lambda is_ready: not is_ready),
            wait=wait_fixed(0.1),
            stop=stop_after_delay(seconds),
            retry_error_callback=lambda _: False,
        )
        log = self._layout.log(name)

        def check() -> bool:
            part = supervisor.status()[name]
            restarts = part.restarts - self._restarts_before.get(name, 0)
            if part.state in ("failed", "stopped") or restarts > MAX_RESTARTS:
                raise PartFailed(f"{name} did not start: {_last_line(log) or part.message}; log: {log}")
            return ready()

        if not waiting(check):
            said = _last_line(log) or "it has logged nothing yet"
            raise PartFailed(f"{name} is not ready after {seconds:.0f} s: {said}; log: {log}")

    def _is_ready(self, supervisor: Supervisor, name: str) -> bool:
        return (self._layout.run / f"{name}.{supervisor.status()[name].pid}.ready").exists()

    def _all_run(self, supervisor: Supervisor) -> bool:
        status = supervisor.status()
        parts = [status.get(name) for name in (*self._servers, *self._services)]
        return all(part is not None and part.state == "running" for part in parts) and all(
            self._is_ready(supervisor, name) for name in self._services
        )

    def _choose_ports(self, reserved: ports.Reservations) -> dict[str, int]:
        """The previous start's ports if they are free, else the preferred or next free ones."""
        last = self._endpoints().get("ports", {})
        wanted = {
            "kafka": self._settings.kafka_port,
            "kafka_controller": self._settings.kafka_port + 1,
            "postgres": self._settings.postgres_port,
            "spark": self._settings.spark_port,
            # Any free one is the next free one here, as others read it from the endpoints.
            "console": self._settings.console_port or Settings.model_fields["console_port"].default,
        }
        return {name: reserved.choose(preferred, last.get(name)) for name, preferred in wanted.items()}

    def _write_endpoints(self, identity: Identity, chosen: dict[str, int], of_scripts: dict[str, str]) -> None:
        owner, services = postgres.dsns(identity, chosen["postgres"])
        before = self._endpoints()
        set_by_user = "partitions" in self._settings.model_fields_set
        partitions = self._settings.partitions if set_by_user else EMBEDDED_PARTITIONS
        write_endpoints(
            self._layout.home,
            {
                "kafka_bootstrap_servers": f"127.0.0.1:{chosen['kafka']}",
                **kafka_auth.endpoints(identity.passwords if self._settings.embedded_kafka_auth else None),
                "postgres_dsn": owner,
                "postgres_service_dsns": services,
                "spark_remote": f"sc://127.0.0.1:{chosen['spark']}",
                # Those in the environment take precedence, one by one.
                "spark_submit_conf": of_scripts,
                "code_store": str(self._layout.home / "code"),
                "topic_prefix": self._settings.topic_prefix,
                "partitions": before.get("partitions", partitions),
                "replication_factor": 1,
                "console_url": f"http://{_shown(self._settings.console_host)}:{chosen['console']}/",
                "ports": chosen,
            },
        )

    def _endpoints(self) -> dict[str, Any]:
        path = self._layout.home / ENDPOINTS_FILE
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def down(self, *, delete: bool = False) -> bool:
        """Stop everything, including what a crash left behind. ``delete``: the stack's files, too.

        Returns False if nothing was running.
        """
        if not self._layout.home.exists():
            return False
        with self._exclusive():
            identity = self._layout.identity()
            ran = identity is not None and self._stop(identity)
            if delete:
                self._layout.delete()
        return ran

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
            # Clients of the servers first: they need them for a clean shutdown.
            supervisor.stop_parts(known.keys() - set(SERVERS))
            supervisor.stop_parts(known.keys() & set(SERVERS))
            supervisor.shutdown()
            processes.wait_exited([psutil.Process(pid)], 10)
        except (*Unreachable, psutil.Error):
            # The supervisor died or takes too long; the caller ends the rest.
            return

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Allows one ``up`` or ``down`` of a home at a time; others wait."""
        with (self._layout.home / "up.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def status(self) -> Status:
        """The state of every part; without a supervisor, all are stopped."""
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
        return self._layout.log(name)


def _shown(host: str) -> str:
    """A host as this machine's browsers reach it."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host


def _service_command(name: str, console_port: int) -> list[str]:
    if name == CONSOLE:
        return command_of("retrofill_console", "--port", str(console_port))
    return command_of(SERVICES[name].package)


def _database_answers(identity: Identity, port: int) -> bool:
    try:
        postgres.make_database(identity, port)
    except psycopg.OperationalError:
        return False
    return True


def _part(name: str, layout: Layout, do: Callable[[], T]) -> T:
    """Run a step of a part's start; any failure becomes ``PartFailed``."""
    try:
        return do()
    except (OSError, java.NoJava, FetchFailed) as e:
        raise PartFailed(f"{name} did not start: {e}; log: {layout.log(name)}") from e
    except Exception as e:
        raise PartFailed(f"{name} did not start: {_one_line(e)}; log: {layout.log(name)}") from e


def _one_line(e: Exception) -> str:
    return f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"


def _last_line(log: Path) -> str:
    if not log.exists():
        return ""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if any(word in line for word in ("Exception", "FATAL", "ERROR", "error", "Error"))]
    return (errors or lines or [""])[-1][:200]
