"""A pool of warm driver processes, with one Spark Connect session per attempt."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from retrofill.attempt_logs import VARIABLE
from retrofill.log import get_log
from retrofill.system.processes import lines_until_exit
from retrofill_core.driver_package import entry, package
from retrofill_core.user_code.environments import Packed
from retrofill_core.user_code.store import CannotUnpackHere, CodeUnavailable
from run_starter.executors import Condition, Host, Key, LaunchRequest, processes
from run_starter.executors.answers import Answers
from run_starter.executors.command import Drivers, Interpreters, told, versions
from run_starter.executors.logs import AttemptLogs
from run_starter.executors.preparing import TRIES, Failures
from run_starter.executors.worker import Waiting, Worker, matches, to_replace, to_start

log = get_log(__name__)
CLOSE_SECONDS = 5.0
MIN_LIMIT_SECONDS = 30.0
ADVICE = "correct its requirements and apply the pipeline again"
# What ends a process is then the kernel, which is short of memory, or somebody at this machine.
_NOT_ITS_OWN = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT)
# What an environment whose interpreter cannot be executed fails with.
_NOT_EXECUTABLE = (errno.ENOENT, errno.ENOEXEC, errno.EACCES, errno.ENOTDIR, errno.ELOOP)


class LocalPool:
    """Up to ``driver_slots`` warm processes."""

    def __init__(
        self,
        drivers: Drivers,
        host: Host,
        logs: AttemptLogs | None = None,
        interpreters: Interpreters | None = None,
        command: tuple[str, ...] | None = None,
    ) -> None:
        """Without ``logs``, all attempts print to the log of all drivers."""
        self._drivers = drivers
        self._settings = settings = drivers.settings
        self._logs = logs
        self._host = host
        self._interpreters = interpreters or Interpreters(drivers)
        # Without an environment.
        self._command = command or (drivers.python, entry(package(settings.home), "__main__"))
        # Of the last driver that was ready.
        self._versions = Condition(0)
        self._slots = settings.driver_slots
        # For a driver to get ready: so many tries fit into the time that an attempt waits.
        self._limit = max(settings.driver_start_seconds / TRIES, min(settings.driver_start_seconds, MIN_LIMIT_SECONDS))
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._waiting: deque[LaunchRequest] = deque()
        # By environment: processes that did not get ready, and attempts that ended before they began.
        self._unready: Failures[Packed | None] = Failures()
        self._unbegun: Failures[Packed | None] = Failures()
        self._note: str | None = None
        self._closed = threading.Event()
        # Set when another environment may be wanted.
        self._woken = threading.Event()
        # Each is a driver to start, with the environment that it gets unless another is waited for; an empty one stops.
        self._spawns: SimpleQueue[tuple[Packed | None, ...]] = SimpleQueue()
        # The kernel ends drivers with the thread that started them, so this thread stays.
        self._spawner = threading.Thread(target=self._spawn_loop, name="spawner", daemon=True)
        self._spawner.start()
        for _ in range(self._slots):
            self._spawns.put((self._drivers.packed,))

    # Executor

    def condition(self) -> Condition:
        with self._lock:
            ready = sum(worker.ready and not worker.retiring for worker in self._workers)
            # What waits for a driver has a seat, but takes none of the ready ones: they are for other seats.
            room = min(ready + len(self._waiting), self._slots)
            return replace(self._versions, room=room, note=self._note if ready < self._slots else None)

    def hosted(self) -> set[Key]:
        with self._lock:
            busy = [worker.answers.launch for worker in self._workers if worker.answers is not None]
            return {launch.key for launch in [*busy, *self._waiting]}

    def waiting(self) -> list[LaunchRequest]:
        with self._lock:
            return list(self._waiting)

    def has_idle(self) -> bool:
        """Whether a warm process is free now."""
        with self._lock:
            return any(worker.ready and not worker.busy and not worker.retiring for worker in self._workers)

    def launch(self, launch: LaunchRequest) -> None:
        """Queue the attempt for the next warm process."""
        with self._lock:
            self._waiting.append(launch)
        self._assign()

    def end(self, key: Key) -> None:
        """End the attempt's process; reported once it has exited."""
        with self._lock:
            waiting = [each for each in self._waiting if each.key == key]
            for each in waiting:
                self._waiting.remove(each)
            self._woken.set()
            busy = [each for each in self._workers if each.answers is not None and each.answers.launch.key == key]
            for worker in busy:
                # If it finishes right now, it must not be given another run, which this would end.
                worker.retiring = True
        for each in waiting:
            self._host.driver_ended(each, reported=False, reason="ended before a driver was given it")
        for worker in busy:
            processes.end(worker.process)

    def close(self) -> None:
        """End all processes and report the busy ones."""
        self._closed.set()
        self._woken.set()
        self._spawns.put(())
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
            workers = list(self._workers)
        for each in waiting:
            self._host.driver_ended(each, reported=False, reason="the run-starter stopped")
        for worker in workers:
            processes.end(worker.process)
        for worker in workers:
            # The reader reports the worker's run once the process has exited.
            if worker.reader is not None:
                worker.reader.join(CLOSE_SECONDS)
            if worker.process.poll() is None:
                log.warning("driver_stays", pid=worker.process.pid)

    # the threads

    def _spawn_loop(self) -> None:
        while (spawn := self._spawns.get()) and not self._closed.is_set():
            packed = self._next(*spawn)
            if not self._closed.is_set():
                self._spawn(packed)
        # This thread is the drivers' parent, so it must not end before the process does.
        self._closed.wait()
        threading.Event().wait()

    def _next(self, otherwise: Packed | None) -> Packed | None:
        """The environment of the next driver, once its pause is over. One that fails holds up no other."""
        while True:
            self._woken.clear()
            with self._lock:
                packed = min(to_start(self._workers, self._wanted(), otherwise), key=self._pause)
                seconds = self._pause(packed)
            if seconds <= 0 or self._closed.is_set():
                return packed
            self._woken.wait(seconds)

    def _pause(self, packed: Packed | None) -> float:
        return max(each.pause(packed) for each in (self._unready, self._unbegun))

    def _spawn(self, packed: Packed | None) -> None:
        try:
            worker = self._begin(packed)
        except Exception as e:  # noqa: BLE001 - out of memory, threads, files or disk space, or no code
            # Retry, because only this thread starts drivers.
            log.error("driver_not_started", error=str(e))
            with self._lock:
                self._note = f"no driver process can be started: {e}"
                self._unready.failed(packed, self._note, fault=_is_fault(e))
            self._spawns.put((self._drivers.packed,))
            self._assign()
            self._host.changed()
            return
        if self._closed.is_set():
            # Started while the pool was closed, so nothing else ends it.
            processes.end(worker.process)

    def _begin(self, packed: Packed | None) -> Worker:
        logged = processes.logged(self._settings.home)
        worker = Worker(self._start(packed), logged, packed)
        worker.send({"settings": told(self._settings)})
        # Under one lock: its reader must not find it missing.
        with self._lock:
            worker.begin(self._listen, self._limit)
            self._workers.append(worker)
        return worker

    def _start(self, packed: Packed | None) -> subprocess.Popen[str]:
        interpreter = self._interpreters.get(packed)
        command = self._command if packed is None else (interpreter.python, *self._command[1:])
        environment = {**self._drivers.environment, **interpreter.environment}
        inherits = []
        if self._logs is not None:
            inherits = [self._logs.channel.fileno()]
            environment[VARIABLE] = str(inherits[0])
        withheld = self._drivers.withheld
        return processes.start(
            command, self._settings.home, environment, pipes=True, inherits=inherits, withheld=withheld
        )

    def _listen(self, worker: Worker) -> None:
        """Handle what a process says until it exits. Nobody else would notice that."""
        try:
            assert worker.process.stdout is not None
            for line in lines_until_exit(worker.process, worker.process.stdout):
                self._heed(worker, line)
        except Exception:
            log.exception("driver_not_read", pid=worker.process.pid)
            processes.end(worker.process)
        self._on_exit(worker)

    def _heed(self, worker: Worker, line: str) -> None:
        try:
            self._hear(worker, line)
        except Exception:
            # It may wait for an answer forever. What it still says is read meanwhile.
            log.exception("driver_not_answered", pid=worker.process.pid)
            processes.end(worker.process)

    def _hear(self, worker: Worker, line: str) -> None:
        answers: dict[str, Callable[[Any], None]] = {
            "ready": lambda fields: self._on_ready(worker, fields),
            "done": lambda fields: self._on_done(worker, fields),
            "lost": worker.gives_up,
        }
        try:
            ((kind, fields),) = json.loads(line).items()
            if not self._answered(worker, kind, fields):
                answers[kind](fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            log.error("driver_said", line=line[:200], pid=worker.process.pid)

    def _on_ready(self, worker: Worker, fields: Any) -> None:
        with self._lock:
            self._versions = versions(fields)
            worker.is_ready()
            self._unready.worked(worker.packed)
        self._host.changed()
        self._assign()

    def _answered(self, worker: Worker, kind: str, fields: Any) -> bool:
        """Whether the message is about the worker's attempt."""
        answers = worker.answers
        if answers is None or not answers.hear(kind, fields):
            return False
        if kind == "may_begin":
            with self._lock:
                self._unbegun.worked(worker.packed)
        return True

    def _on_done(self, worker: Worker, fields: dict[str, Any]) -> None:
        with self._lock:
            answers = self._left(worker)
        if answers is not None:
            answers.ended(reported=bool(fields.get("reported")), reason="the driver was not allowed to begin")
        self._assign()

    def _on_exit(self, worker: Worker) -> None:
        reason = processes.exit_reason(worker.process, worker.why_lost)
        if worker.overdue:
            reason = f"the driver process was not ready within {self._limit:.0f} seconds"
        worker.hang_up()
        if not worker.ready and worker.why_lost is None:
            words = processes.last_words(self._settings.home, worker.logged)
            reason += "" if words is None else f": {words}"
        with self._lock:
            answers = self._left(worker)
            known = worker in self._workers
            if known:
                self._workers.remove(worker)
                # One that its host ended did not fail.
                began_nothing = answers is not None and answers.begun is None and not worker.retiring
                failed = self._unbegun if began_nothing else None if worker.ready else self._unready
                if failed is not None:
                    self._note = reason
                    failed.failed(worker.packed, reason, fault=_ended_itself(worker))
            stays = worker.ready and self._blamed(worker.packed) is None
        if known and not self._closed.is_set():
            log.warning("driver_exited", pid=worker.process.pid, reason=reason, was_ready=worker.ready)
            self._spawns.put((worker.packed if stays else self._drivers.packed,))
        if answers is not None:
            unheard = processes.was_unheard(worker.process)
            answers.ended(reported=False, reason=reason, unheard=unheard, shared=worker.shared)
        self._assign()
        self._host.changed()

    def _left(self, worker: Worker) -> Answers | None:
        """Take the attempt from its worker. The caller holds the lock."""
        answers, worker.answers = worker.answers, None
        return answers

    def _wanted(self) -> list[Waiting]:
        """What waiting attempts need. The caller holds the lock."""
        return [Waiting(launch, self._interpreters.packed_of(launch)) for launch in self._waiting]

    def _blamed(self, packed: Packed | None) -> str | None:
        """Why attempts of this environment fail, if drivers start here, and not in it. The caller holds the lock.

        A pool whose own drivers do not start gets no attempts until they do.
        """
        own = self._drivers.packed
        if packed == own or self._unready.blamed(own) is not None:
            return None
        reason = self._unready.blamed(packed) or self._unbegun.blamed(packed)
        return reason and f"no driver starts in the pipeline's environment, after {TRIES} tries: {reason}: {ADVICE}"

    def _assign(self) -> None:
        """Give waiting attempts to idle warm processes, and replace those of environments that none needs.

        Attempts whose environment does not start fail.
        """
        given: list[tuple[Worker, LaunchRequest]] = []
        with self._lock:
            blamed = [(each.launch, why) for each in self._wanted() if (why := self._blamed(each.packed)) is not None]
            for launch, _ in blamed:
                self._waiting.remove(launch)
            for worker, launch in matches(self._workers, self._wanted()):
                self._waiting.remove(launch)
                worker.answers = Answers(self._host, launch, worker.send)
                given.append((worker, launch))
            replaced = to_replace(self._workers, self._wanted(), self._slots)
            for worker in replaced:
                self._workers.remove(worker)
        self._woken.set()
        for worker, launch in given:
            # If the process has exited, its reader reports the launch as lost. If it never reads it, it is ended once
            # the attempt's lease is over.
            worker.send({"launch": launch.as_json()})
        for launch, why in blamed:
            self._host.refused(launch, why, kind=CodeUnavailable.__name__)
        for worker in replaced:
            self._spawns.put((worker.packed,))
            worker.retire()


def _ended_itself(worker: Worker) -> bool:
    """Whether a process that failed did so by what it executes, which would do so elsewhere too.

    Of what is none of its own, as Spark that does not answer, it says so itself.
    """
    return worker.overdue or (worker.why_lost is None and worker.process.returncode not in _NOT_ITS_OWN)


def _is_fault(error: Exception) -> bool:
    """Whether a process cannot be started because of its environment."""
    if isinstance(error, CodeUnavailable):
        return not isinstance(error, CannotUnpackHere)
    return isinstance(error, OSError) and error.errno in _NOT_EXECUTABLE
