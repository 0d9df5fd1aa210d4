"""Attempts by spark-submit: one driver process each, on the ``--master`` that the settings name.

The driver uses the protocol of the warm pool, but over a socket, because spark-submit keeps the
pipes. In client mode the driver is a child and connects over loopback. In cluster mode the socket
is the only link: closing it makes the driver exit. If it breaks, the application is killed; until the
cluster says that it has ended, only the lease ends the attempt.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from retrofill import attempt_logs
from retrofill.log import get_log
from retrofill.spark import clusters
from retrofill.spark.home import LOOPBACK, SparkHome
from retrofill.system.files import PrivateFolder
from retrofill.system.processes import await_exit
from run_starter.executors import Condition, Host, Key, LaunchRequest, processes, submission
from run_starter.executors.answers import Answers
from run_starter.executors.clearing import cluster_for
from run_starter.executors.command import Drivers, Interpreters, told, versions
from run_starter.executors.logs import AttemptLogs
from run_starter.executors.submission import Submitted, handshake

log = get_log(__name__)
# From the durable end of an attempt until its driver must have exited. Stopping Spark may take so long if it writes the
# event log to a distant store. Nothing else ends such a driver: its lease is over, and its attempt is done.
EXIT_SECONDS = 120.0


class SparkSubmit:
    """An executor with one process per attempt."""

    def __init__(
        self, drivers: Drivers, host: Host, logs: AttemptLogs | None = None, interpreters: Interpreters | None = None
    ) -> None:
        """Without ``logs``, all attempts print to the log of all drivers."""
        self._drivers = drivers
        self._settings = drivers.settings
        self._interpreters = interpreters or Interpreters(drivers)
        # Of the last driver that was ready.
        self._versions = Condition(0)
        self._logs = logs
        self._host = host
        self._lock = threading.Lock()
        self._running: dict[Key, Submitted | None] = {}
        # Those whose driver sends no heartbeats: it is not there yet, or is gone and its application is being killed.
        self._silent: dict[Key, LaunchRequest] = {}
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
            return list(self._silent.values())

    def hosted(self) -> set[Key]:
        with self._lock:
            return set(self._running)

    def launch(self, launch: LaunchRequest) -> None:
        """Submit the attempt on its own thread, which is the parent of its driver."""
        with self._lock:
            self._running[launch.key] = None
            self._silent[launch.key] = launch
        try:
            threading.Thread(target=self._run, args=(launch,), name="spark-submit", daemon=True).start()
        except RuntimeError as e:
            self._forget(launch.key)
            reason = f"spark-submit could not be started: {e}"
            self._count(False, reason)
            self._host.driver_ended(launch, reported=False, reason=reason)

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
        remote = submission.is_remote(self._settings, launch)
        overdue = threading.Timer(EXIT_SECONDS, self._end_overdue, args=(key,))
        overdue.daemon = True
        answers = Answers(
            self._host,
            launch,
            lambda answer: submitted and submitted.send(answer),
            remote=remote,
            on_over=lambda: _start(overdue),
        )
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
            overdue.cancel()
            reported = reported or answers.over
            # A driver in the cluster that never connected can no longer begin: nothing listens.
            exited = submitted is None or not submitted.remote or submitted.connection is None
            # One that reported its end and was ended nevertheless did not exit by itself.
            unsure = submitted is not None and submitted.remote and (not reported or submitted.ending)
            left = unsure and not self._closing
            if left and not exited:
                # The cluster may take longer than a lease, and the attempt is to end with this reason.
                with self._lock:
                    self._silent[key] = launch
                exited, left = self._kill(launch), False
            self._forget(key)
            self._count(reported or answers.begun is not None, reason)
            unheard = submitted is not None and processes.was_unheard(submitted.process)
            answers.ended(reported=reported, reason=reason, exited=exited, unheard=unheard)
            if left:
                # After the report, which must come before the end of the lease. The next attempt waits for it too.
                self._kill(launch)

    def _forget(self, key: Key) -> None:
        with self._lock:
            self._running.pop(key, None)
            self._silent.pop(key, None)

    def _end_overdue(self, key: Key) -> None:
        log.warning("driver_does_not_exit", attempt=key, seconds=EXIT_SECONDS)
        self.end(key)

    def _kill(self, launch: LaunchRequest) -> bool:
        """Kill the attempt's applications; returns whether they have ended. The next attempt waits for that too."""
        try:
            cluster = cluster_for(self._drivers, launch)
            if cluster is None:
                return False
            clusters.end(cluster, [clusters.tag_of(launch.installation, launch.attempt_id)])
        except Exception as e:  # noqa: BLE001 - whatever it is, the attempt's end must be reported
            log.warning("application_not_killed", attempt=launch.attempt_id, error=str(e))
            return False
        return True

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
        if submitted.connection is None and not submitted.ending and self._logs is not None:
            reason += (
                f" before it connected: 'retrofill runs logs attempt:{submitted.answers.launch.attempt_id}' says why"
            )
        submitted.server.close()
        submitted.folder.remove()
        return reported, reason

    def _submit(self, answers: Answers) -> Submitted:
        settings, launch = self._settings, answers.launch
        plain = launch.needs_no_spark
        # Files are moved without any packages, Spark's or others.
        packed = None if plain and launch.only_files else self._interpreters.packed_of(launch)
        interpreter = self._interpreters.get(packed)
        local = settings.driver_host in LOOPBACK
        server = socket.create_server(("127.0.0.1" if local else "", 0))
        token = secrets.token_hex(16)
        environment = {
            **self._drivers.environment,
            **interpreter.environment,
            "RETROFILL_DRIVER_SOCKET": f"{settings.driver_host}:{server.getsockname()[1]}",
            "RETROFILL_DRIVER_TOKEN": token,
        }
        folder = PrivateFolder()
        try:
            if plain:
                command = submission.plain_command(settings, interpreter.python)
            else:
                # Not every installation has Spark, nor a Java for it.
                home = SparkHome.of(settings, interpreter.python)
                cluster = cluster_for(self._drivers, launch)
                command = submission.command(home, launch, environment, folder.path, interpreter.unpacked, cluster)
                environment |= home.environment(folder.path, os.environ)
            process = self._start(launch, command, environment)
        except Exception:
            folder.remove()
            server.close()
            raise
        remote = submission.is_remote(settings, launch)
        return Submitted(answers, process, server, token, folder, remote)

    def _start(
        self, launch: LaunchRequest, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        output = self._open_log(launch)
        try:
            return processes.start(
                command,
                self._settings.home,
                environment,
                pipes=False,
                output=output,
                withheld=self._drivers.withheld,
            )
        finally:
            if output is not None:
                os.close(output)

    def _open_log(self, launch: LaunchRequest) -> int | None:
        output = None if self._logs is None else self._logs.open(launch.attempt_id)
        if output is not None and submission.is_remote(self._settings, launch):
            os.write(
                output,
                attempt_logs.signed(attempt_logs.note("the driver runs in the cluster, which keeps what it prints")),
            )
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
            return submitted.connect(connection) and self._converse(submitted, lines)

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
        master = SparkHome.of(self._settings, self._drivers.python).master if submitted.remote else None
        submitted.send({"settings": told(self._settings, master)})
        try:
            for line in lines:
                try:
                    ((kind, fields),) = json.loads(line).items()
                except (ValueError, AttributeError):
                    # User code may end the driver in the middle of a line. What its parent says of that follows.
                    log.error("driver_said", line=line[:200], attempt=launch.attempt_id)
                    continue
                if kind == "ready":
                    with self._lock:
                        self._silent.pop(launch.key, None)
                        self._versions = versions(fields)
                    submitted.send({"launch": launch.as_json()})
                elif kind == "lost":
                    submitted.why_lost = str(fields["why"])
                elif kind == "done":
                    return bool(fields.get("reported"))
                else:
                    answers.hear(kind, fields)
        except OSError as e:
            log.info("driver_hung_up", backfill=launch.backfill_id, attempt=launch.attempt_id, error=str(e))
        return False


def _start(timer: threading.Timer) -> None:
    try:
        timer.start()
    except RuntimeError as e:
        # Its driver, which nearly always exits by itself, is the lesser evil than a report that is not acknowledged.
        log.warning("driver_has_no_time_limit", error=str(e))


def _close_when_gone(submitted: Submitted) -> None:
    await_exit(submitted.process.pid)
    if submitted.ending:
        # A driver in the cluster that is stopped would never close it, and only then its application is killed.
        submitted.hang_up()
    try:
        # Closing does not wake a thread blocked in accept.
        submitted.server.shutdown(socket.SHUT_RDWR)
    except OSError:
        submitted.server.close()
