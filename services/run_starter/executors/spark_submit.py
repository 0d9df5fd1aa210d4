"""Whole runs by spark-submit: a driver of its own for each, on whatever ``--master`` the settings name.

The driver talks to its host as a warm one does, but over a socket: spark-submit keeps the pipes for itself. In client mode
that is one of loopback, and the driver is a child. In cluster mode it is somewhere else: it is heard through
the socket only, whose end makes it leave, and once nobody hears it only its lease tells whether it still runs.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from retrofill.groups import await_exit
from retrofill.settings import LOOPBACK, Settings
from run_starter.executors import Host, Key, Launch, processes, submission
from run_starter.executors.login import login

log = structlog.get_logger(__name__)
CONNECT_SECONDS = 300.0
# Who connects says at once who it is; others may knock where the port is not of loopback.
GREETING_SECONDS = 5.0
MAX_GREETING = 1000


@dataclass
class Submitted:
    """One run in its own driver; ``lines`` is the connection with it, once there is one."""

    launch: Launch
    process: subprocess.Popen[str]
    server: socket.socket
    token: str
    properties: Path
    lines: Any = None
    ending: bool = False
    why_lost: str | None = None
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def connect(self, lines: Any) -> bool:
        """The driver is there; False where it is to be ended by now."""
        with self._writing:
            self.lines = lines
            return not self.ending

    def say(self, message: dict[str, Any]) -> None:
        """Send one line. Who is being ended is told nothing more, least of all to begin."""
        with self._writing:
            if not self.ending:
                self._write(message)

    def end(self) -> None:
        """Have the driver end itself, and kill what is left after a grace. Returns at once.

        A signal would reach Spark first, whose end fails the tasks, and the driver would tell this as the run's failure.
        """
        with self._writing:
            fields = not self.ending and self.lines is not None and self._try({"end": True})
            self.ending = True
        if fields:
            processes.kill_later(self.process)
        else:
            processes.end(self.process)

    def _write(self, message: dict[str, Any]) -> None:
        self.lines.write(json.dumps(message) + "\n")
        self.lines.flush()

    def _try(self, message: dict[str, Any]) -> bool:
        try:
            self._write(message)
        except (OSError, ValueError):
            # It has hung up, or we have.
            return False
        return True


class SparkSubmit:
    """An executor with a process a run."""

    def __init__(self, settings: Settings, host: Host) -> None:
        self._settings = settings
        self._host = host
        self._lock = threading.Lock()
        self._running: dict[Key, Submitted | None] = {}
        self._closing = False

    def free(self) -> int:
        """Runs that may be launched now."""
        return self._settings.driver_slots - len(self.hosted())

    def hosted(self) -> set[Key]:
        """Whose drivers are here."""
        with self._lock:
            return set(self._running)

    def launch(self, launch: Launch) -> None:
        """Submit the attempt; everything about it happens on a thread of its own, which is the parent of its driver."""
        with self._lock:
            self._running[launch.key] = None
        threading.Thread(target=self._run, args=(launch,), name="spark-submit", daemon=True).start()

    def end(self, key: Key) -> None:
        """End the attempt's driver."""
        with self._lock:
            submitted = self._running.get(key)
        if submitted is not None:
            submitted.end()

    def close(self) -> None:
        """End all drivers."""
        self._closing = True
        with self._lock:
            running = [each for each in self._running.values() if each is not None]
        for each in running:
            each.end()
        for each in running:
            try:
                each.process.wait(processes.GRACE_SECONDS * 2)
            except subprocess.TimeoutExpired:
                log.warning("driver_stays", pid=each.process.pid)

    def _run(self, launch: Launch) -> None:
        key = launch.key
        reported, reason, submitted = False, "spark-submit could not be started", None
        try:
            submitted = self._submit(launch)
            with self._lock:
                self._running[key] = submitted
            if self._closing:
                submitted.end()
            reported, reason = self._serve(submitted)
        except Exception as e:  # noqa: BLE001 - no Java, no socket, no memory: whatever it is, the loss says it
            reason = f"spark-submit could not be started: {e}"
        finally:
            with self._lock:
                self._running.pop(key, None)
            # One in the cluster that we never talked with cannot begin any more: nobody listens.
            heard = submitted is not None and submitted.lines is not None
            gone = self._settings.spark_submit_deploy_mode == "client" or not heard
            self._host.driver_ended(launch, reported=reported, reason=reason, gone=gone)

    def _serve(self, submitted: Submitted) -> tuple[bool, str]:
        """Serve one driver to the end of its process: only then may its run be told as lost and begin anew."""
        reported = False
        try:
            reported = self._talk(submitted)
        except Exception as e:  # noqa: BLE001 - what cannot be understood must not go on unobserved
            log.error("driver_said_nonsense", run=submitted.launch.run_id, error=str(e))
            processes.end(submitted.process)
        reason = processes.how_it_ended(submitted.process, submitted.why_lost)
        submitted.server.close()
        submission.remove(submitted.properties)
        return reported, reason

    def _submit(self, launch: Launch) -> Submitted:
        # Only who has a Spark needs its parts: imported here.
        from retrofill.java import find, loopback_only, spark_submit_command

        settings = self._settings
        local = settings.driver_host in LOOPBACK
        server = socket.create_server(("127.0.0.1" if local else "", 0))
        token = secrets.token_hex(16)
        environment = {
            **login(settings),
            "RETROFILL_DRIVER_SOCKET": f"{settings.driver_host}:{server.getsockname()[1]}",
            "RETROFILL_DRIVER_TOKEN": token,
        }
        conf = submission.driver_conf(settings, launch)
        here = settings.spark_submit_deploy_mode == "client"
        file = submission.properties_file()
        command = [
            *spark_submit_command(find(settings), file.with_name("jvm.options"), conf=conf if here else {}),
            *submission.arguments(settings, conf if here else submission.in_cluster(settings, conf, environment), file),
        ]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        python |= loopback_only(settings.spark_submit_master, os.environ)
        try:
            process = processes.start(command, settings.home, environment | python, pipes=False)
        except OSError:
            submission.remove(file)
            server.close()
            raise
        return Submitted(launch, process, server, token, file)

    def _talk(self, submitted: Submitted) -> bool:
        """Serve one driver; whether it had delivered its own report."""
        # A submit that ends before its driver connected must not be waited for: the process's end closes the server.
        threading.Thread(target=_close_when_gone, args=(submitted,), name="submit-watch", daemon=True).start()
        connected = self._greeted(submitted)
        if connected is None:
            processes.end(submitted.process)
            return False
        connection, lines = connected
        with connection, lines:
            return submitted.connect(lines) and self._converse(submitted, lines)

    def _greeted(self, submitted: Submitted) -> tuple[socket.socket, Any] | None:
        """The connection of who knows the token; ``None`` where nobody came in time. Others are sent away."""
        until = time.monotonic() + CONNECT_SECONDS
        while (left := until - time.monotonic()) > 0:
            submitted.server.settimeout(left)
            try:
                connection, _ = submitted.server.accept()
            except OSError:
                return None
            lines = _greeting(connection, submitted.token)
            if lines is not None:
                return connection, lines
            connection.close()
        return None

    def _converse(self, submitted: Submitted, lines: Any) -> bool:
        launch = submitted.launch
        try:
            for line in lines:
                fields = json.loads(line)
                if "ready" in fields:
                    submitted.say({"launch": launch.as_json()})
                elif "may_begin" in fields:
                    submitted.say({"begin": self._host.may_begin(launch)})
                elif "may_publish" in fields:
                    submitted.say({"publish": self._host.may_publish(launch)})
                elif "lost" in fields:
                    submitted.why_lost = str(fields["lost"])
                elif "done" in fields:
                    return bool(fields["done"].get("reported"))
        except OSError as e:
            log.info(
                "driver_hung_up", backfill=launch.backfill_id, run=launch.run_id, attempt=launch.attempt, error=str(e)
            )
        return False


def _greeting(connection: socket.socket, token: str) -> Any:
    """The lines of a connection that begins with the token."""
    lines = connection.makefile("rw", encoding="utf-8")
    try:
        connection.settimeout(GREETING_SECONDS)
        fields = json.loads(lines.readline(MAX_GREETING) or "{}").get("token")
        connection.settimeout(None)
    except (OSError, ValueError, AttributeError):
        fields = None
    known = isinstance(fields, str) and secrets.compare_digest(fields.encode(), token.encode())
    return lines if known else None


def _close_when_gone(submitted: Submitted) -> None:
    await_exit(submitted.process.pid)
    try:
        # Closing alone does not wake a thread that waits in accept.
        submitted.server.shutdown(socket.SHUT_RDWR)
    except OSError:
        submitted.server.close()
