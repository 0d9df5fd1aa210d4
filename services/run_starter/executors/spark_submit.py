"""Whole runs by spark-submit: a driver of its own for each, on whatever ``--master`` the settings name (client mode).

The driver talks to its host as a warm one does, but over a loopback socket: spark-submit keeps the pipes for itself.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

import retrofill.driver
from retrofill.settings import Settings
from run_starter.executors import Host, Key, Launch, processes

log = structlog.get_logger(__name__)
ENTRY = Path(retrofill.driver.__file__).with_name("once.py")
CONNECT_SECONDS = 300.0


@dataclass
class Submitted:
    """One run in its own driver; ``lines`` is the connection with it, once there is one."""

    launch: Launch
    process: subprocess.Popen[str]
    server: socket.socket
    token: str
    lines: Any = None
    ending: bool = False
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
            told = not self.ending and self.lines is not None and self._try({"end": True})
            self.ending = True
        if told:
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
        reported, reason = False, "spark-submit could not be started"
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
            self._host.driver_ended(launch, reported=reported, reason=reason)

    def _serve(self, submitted: Submitted) -> tuple[bool, str]:
        """Serve one driver to the end of its process: only then may its run be told as lost and begin anew."""
        reported = False
        try:
            reported = self._talk(submitted)
        except Exception as e:  # noqa: BLE001 - what cannot be understood must not go on unobserved
            log.error("driver_said_nonsense", run=submitted.launch.run_id, error=str(e))
            processes.end(submitted.process)
        reason = processes.how_it_ended(submitted.process)
        submitted.server.close()
        return reported, reason

    def _submit(self, launch: Launch) -> Submitted:
        # Only who has a Spark needs its parts: imported here.
        from retrofill.stack.java import find, spark_submit_command

        server = socket.create_server(("127.0.0.1", 0))
        token = secrets.token_hex(16)
        conf = {
            "spark.app.name": f"retrofill {launch.pipeline.name} {launch.interval_start.isoformat()}",
            "spark.ui.enabled": "false",
            **launch.pipeline.spark_conf,
        }
        command = [
            *spark_submit_command(find(self._settings)),
            "--master",
            self._settings.spark_submit_master,
            *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
            str(ENTRY),
        ]
        environment = {
            **processes.login(self._settings),
            "RETROFILL_DRIVER_SOCKET": f"127.0.0.1:{server.getsockname()[1]}",
            "RETROFILL_DRIVER_TOKEN": token,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        return Submitted(launch, processes.start(command, self._settings.home, environment, pipes=False), server, token)

    def _talk(self, submitted: Submitted) -> bool:
        """Serve one driver; whether it had delivered its own report."""
        # A submit that ends before its driver connected must not be waited for: the process's end closes the server.
        threading.Thread(target=_close_when_gone, args=(submitted,), name="submit-watch", daemon=True).start()
        submitted.server.settimeout(CONNECT_SECONDS)
        try:
            connection, _ = submitted.server.accept()
        except OSError:
            processes.end(submitted.process)
            return False
        with connection, connection.makefile("rw", encoding="utf-8") as lines:
            if json.loads(lines.readline() or "{}").get("token") != submitted.token:
                processes.end(submitted.process)
                return False
            return submitted.connect(lines) and self._converse(submitted, lines)

    def _converse(self, submitted: Submitted, lines: Any) -> bool:
        launch = submitted.launch
        try:
            for line in lines:
                told = json.loads(line)
                if "ready" in told:
                    submitted.say({"launch": launch.as_json()})
                elif "may_begin" in told:
                    submitted.say({"begin": self._host.may_begin(launch)})
                elif "may_publish" in told:
                    submitted.say({"publish": self._host.may_publish(launch)})
                elif "done" in told:
                    return bool(told["done"].get("reported"))
        except OSError as e:
            log.info(
                "driver_hung_up", backfill=launch.backfill_id, run=launch.run_id, attempt=launch.attempt, error=str(e)
            )
        return False


def _close_when_gone(submitted: Submitted) -> None:
    submitted.process.wait()
    try:
        # Closing alone does not wake a thread that waits in accept.
        submitted.server.shutdown(socket.SHUT_RDWR)
    except OSError:
        submitted.server.close()
