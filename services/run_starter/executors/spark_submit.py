"""Attempts by spark-submit: one driver process each, on the ``--master`` that the settings name.

The driver uses the protocol of the warm pool, but over a socket, because spark-submit keeps the
pipes. In client mode the driver is a child and connects over loopback. In cluster mode the socket
is the only link: closing it makes the driver exit; if it breaks, only the lease ends the attempt.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from retrofill.attempt_logs import marks
from retrofill.groups import await_exit
from retrofill.setting_types import LOOPBACK
from retrofill.settings import Settings
from run_starter.executors import Condition, Host, Key, LaunchRequest, processes, submission
from run_starter.executors.answers import Answers
from run_starter.executors.command import Drivers, versions
from run_starter.executors.handshake import handshake
from run_starter.executors.login import login
from run_starter.executors.logs import AttemptLogs

log = structlog.get_logger(__name__)


@dataclass
class Submitted:
    """One attempt in its own driver. ``lines``: the connection, once the driver has connected."""

    answers: Answers
    process: subprocess.Popen[str]
    server: socket.socket
    token: str
    properties: Path
    lines: Any = None
    ending: bool = False
    why_lost: str | None = None
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def connect(self, lines: Any) -> bool:
        """Store the driver's connection. Returns False if the driver is being ended."""
        with self._writing:
            self.lines = lines
            return not self.ending

    def send(self, message: dict[str, Any]) -> None:
        """Send one line, unless the driver is being ended."""
        with self._writing:
            if not self.ending:
                self._write(message)

    def end(self) -> None:
        """Ask the driver to exit, and kill what is left after a grace period. Returns at once.

        A signal would stop Spark first, and the driver would report the failing tasks.
        """
        with self._writing:
            asked = not self.ending and self.lines is not None and self._try({"end": True})
            self.ending = True
        if asked:
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
            # Either side has closed the connection.
            return False
        return True


class SparkSubmit:
    """An executor with one process per attempt."""

    def __init__(
        self, settings: Settings, host: Host, logs: AttemptLogs | None = None, drivers: Drivers | None = None
    ) -> None:
        """Without ``logs``, all attempts print to the log of all drivers."""
        self._settings = settings
        self._drivers = drivers or Drivers(settings)
        # Of the last driver that was ready.
        self._versions = Condition(0)
        self._logs = logs
        self._host = host
        self._lock = threading.Lock()
        self._running: dict[Key, Submitted | None] = {}
        self._unconnected: dict[Key, LaunchRequest] = {}
        self._closing = False
        # Starts in a row that began nothing, and why the last one did not.
        self._failures = 0
        self._not_before = 0.0
        self._note: str | None = None

    def condition(self) -> Condition:
        submits = time.monotonic() >= self._not_before
        return replace(self._versions, room=len(self.hosted()), submits=submits, note=None if submits else self._note)

    def waiting(self) -> list[LaunchRequest]:
        with self._lock:
            return list(self._unconnected.values())

    def hosted(self) -> set[Key]:
        with self._lock:
            return set(self._running)

    def launch(self, launch: LaunchRequest) -> None:
        """Submit the attempt on its own thread, which is the parent of its driver."""
        with self._lock:
            self._running[launch.key] = None
            self._unconnected[launch.key] = launch
        threading.Thread(target=self._run, args=(launch,), name="spark-submit", daemon=True).start()

    def end(self, key: Key) -> None:
        with self._lock:
            submitted = self._running.get(key)
        if submitted is not None:
            submitted.end()

    def close(self) -> None:
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

    def _run(self, launch: LaunchRequest) -> None:
        key = launch.key
        reported, reason, submitted = False, "spark-submit could not be started", None
        answers = Answers(self._host, launch, lambda answer: submitted and submitted.send(answer))
        try:
            submitted = self._submit(answers)
            with self._lock:
                self._running[key] = submitted
            if self._closing:
                submitted.end()
            reported, reason = self._serve(submitted)
        except Exception as e:  # noqa: BLE001 - no Java, no socket, no memory: reported as the loss's reason
            reason = f"spark-submit could not be started: {e}"
        finally:
            with self._lock:
                self._running.pop(key, None)
                self._unconnected.pop(key, None)
            self._count(reported or answers.begun is not None, reason)
            # A driver in the cluster that never connected can no longer begin: nothing listens.
            heard = submitted is not None and submitted.lines is not None
            exited = self._settings.spark_submit_deploy_mode == "client" or not heard
            answers.ended(reported=reported, reason=reason, exited=exited)

    def _count(self, began: bool, reason: str) -> None:
        """Pause after a start that began nothing, longer after each one."""
        self._failures = 0 if began else self._failures + 1
        self._not_before = time.monotonic() + processes.pause(self._failures) if self._failures else 0.0
        self._note = reason

    def _serve(self, submitted: Submitted) -> tuple[bool, str]:
        """Serve one driver until its process exits; only then may its run be reported as lost."""
        reported = False
        try:
            reported = self._serve_connection(submitted)
        except Exception as e:  # noqa: BLE001 - a driver whose messages cannot be read must not run on
            log.error("driver_said_nonsense", attempt=submitted.answers.launch.attempt_id, error=str(e))
            processes.end(submitted.process)
        reason = processes.exit_reason(submitted.process, submitted.why_lost)
        submitted.server.close()
        submission.remove(submitted.properties)
        return reported, reason

    def _submit(self, answers: Answers) -> Submitted:
        # Imported late: not every installation has Spark.
        from retrofill.java import find, loopback_only, spark_submit_command

        settings = self._settings
        local = settings.driver_host in LOOPBACK
        server = socket.create_server(("127.0.0.1" if local else "", 0))
        token = secrets.token_hex(16)
        environment = {
            **self._drivers.environment,
            **login(settings),
            "RETROFILL_DRIVER_SOCKET": f"{settings.driver_host}:{server.getsockname()[1]}",
            "RETROFILL_DRIVER_TOKEN": token,
        }
        conf = submission.driver_conf(settings, answers.launch)
        here = settings.spark_submit_deploy_mode == "client"
        file = submission.properties_file()
        command = [
            *spark_submit_command(
                find(settings), file.with_name("jvm.options"), conf=conf if here else {}, spark_home=settings.spark_home
            ),
            *submission.arguments(settings, conf if here else submission.in_cluster(settings, conf, environment), file),
        ]
        python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), self._drivers.python)
        python |= loopback_only(settings.spark_submit_master, os.environ)
        output = self._open_log(answers.launch)
        try:
            process = processes.start(
                command,
                settings.home,
                environment | python,
                pipes=False,
                output=output,
                withheld=self._drivers.withheld,
            )
        except OSError:
            submission.remove(file)
            server.close()
            raise
        finally:
            if output is not None:
                os.close(output)
        return Submitted(answers, process, server, token, file)

    def _open_log(self, launch: LaunchRequest) -> int | None:
        output = None if self._logs is None else self._logs.open(launch.attempt_id)
        if output is not None and self._settings.spark_submit_deploy_mode == "cluster":
            os.write(output, marks.signed(marks.note("the driver runs in the cluster, which keeps what it prints")))
        return output

    def _serve_connection(self, submitted: Submitted) -> bool:
        """Serve one driver; returns whether it delivered its own report."""
        # If spark-submit exits before its driver has connected, closing the server ends the wait.
        threading.Thread(target=_close_when_gone, args=(submitted,), name="submit-watch", daemon=True).start()
        connected = self._accept_driver(submitted)
        if connected is None:
            processes.end(submitted.process)
            return False
        connection, lines = connected
        with connection, lines:
            return submitted.connect(lines) and self._converse(submitted, lines)

    def _accept_driver(self, submitted: Submitted) -> tuple[socket.socket, Any] | None:
        """Accept the connection that sends the token (``None``: none in time); close others."""
        until = time.monotonic() + self._settings.driver_start_seconds
        while (left := until - time.monotonic()) > 0:
            submitted.server.settimeout(left)
            try:
                connection, _ = submitted.server.accept()
            except OSError:
                return None
            lines = handshake(connection, submitted.token)
            if lines is not None:
                return connection, lines
            connection.close()
        return None

    def _converse(self, submitted: Submitted, lines: Any) -> bool:
        answers = submitted.answers
        launch = answers.launch
        try:
            for line in lines:
                fields = json.loads(line)
                if "ready" in fields:
                    with self._lock:
                        self._unconnected.pop(launch.key, None)
                        self._versions = versions(fields["ready"])
                    submitted.send({"launch": launch.as_json()})
                elif "may_begin" in fields:
                    answers.may_begin(fields["may_begin"])
                elif "may_publish" in fields:
                    answers.may_publish(fields["may_publish"])
                elif "timed_out" in fields:
                    answers.timed_out(fields["timed_out"])
                elif "lost" in fields:
                    submitted.why_lost = str(fields["lost"])
                elif "done" in fields:
                    return bool(fields["done"].get("reported"))
        except OSError as e:
            log.info("driver_hung_up", backfill=launch.backfill_id, attempt=launch.attempt_id, error=str(e))
        return False


def _close_when_gone(submitted: Submitted) -> None:
    await_exit(submitted.process.pid)
    try:
        # Closing does not wake a thread blocked in accept.
        submitted.server.shutdown(socket.SHUT_RDWR)
    except OSError:
        submitted.server.close()
