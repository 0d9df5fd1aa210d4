"""The parent of a warm driver: forks a process for each attempt, and passes on what the host says.

Whatever user code does to its process ends with the attempt: modules, working directory, variables, time zone, streams,
handlers, threads, its own Spark session. The parent has imported what takes long, and has neither threads nor
connections, so it can fork at any time. It ends like the process of the attempt, unless user code ended that.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from json import dumps, loads
from typing import IO, Any, Callable, NoReturn

from retrofill.log import write_error
from retrofill.masking import masked
from retrofill.protocol.facts import ErrorInfo, as_json
from retrofill.states import PROCESS_ENDED

CHUNK = 65_536
# How long a process may take to end once the host has hung up or ended it. It needs less, unless it does not listen.
END_SECONDS = 4.0
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_LAUNCH, _END = b'{"launch"', b'{"end"'


class Notes:
    """What a process says to its parent."""

    def __init__(self, to: int | None = None) -> None:
        """Without ``to``, there is no such parent."""
        self._to = to
        self._process = os.getpid()

    def ready(self, said: dict[str, Any], kept: Any) -> None:
        """The driver is ready, as it says to its host. ``kept``: JSON data for the processes of the attempts."""
        self._send("ready", [said, kept])

    def began(self, task: str, try_number: int, *, everywhere: bool = False) -> None:
        """User code of a task runs from now on. ``everywhere``: it does the same in every run."""
        self._send("began", [task, try_number, everywhere])

    def ended(self, task: str) -> None:
        """It does so no longer."""
        self._send("ended", task)

    def over(self) -> None:
        """The attempt is over: what becomes of its process concerns nobody."""
        self._send("over", None)

    def leaves(self) -> None:
        """The process ends for a reason of our own: whatever exits it from now on is no error of a task."""
        self._send("leaves", None)

    def leave(self, status: int) -> NoReturn:
        """Exit for a reason of our own, not by user code."""
        self.leaves()
        os._exit(status)

    def _send(self, kind: str, fields: Any) -> None:
        # A child that user code forked leaves our blocks too, and speaks for nobody.
        if self._to is None or os.getpid() != self._process:
            return
        # In one write, so that threads need no lock, which user code that forks could leave locked.
        with suppress(OSError):  # the parent was killed, and this process is about to be
            os.write(self._to, dumps({kind: fields}).encode() + b"\n")


# Runs in a process of its own: with what the host says, where the host listens, and what the first process kept.
Body = Callable[[IO[str], IO[str], Notes, Any], object]


@dataclass
class _Child:
    """A process, and its pipes' ends here."""

    pid: int
    lines: int
    notes: int
    rest: bytes = b""
    over: bool = False
    leaves: bool = False
    # By task: the try, and whether what it does now is the same in every run.
    tasks: dict[str, tuple[int, bool]] = field(default_factory=dict)


class Parent:
    """``incoming`` and ``outgoing``: the host's pipes. ``first`` notes ``ready``, and each attempt gets an ``attempt``."""

    def __init__(self, incoming: int, outgoing: int, first: Body, attempt: Body) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._attempt = attempt
        self._kept: Any = None
        self._rest = b""
        self._children: dict[int, _Child] = {}
        self._current: _Child | None = None
        self._hung_up = False
        self._kill_at: float | None = None
        self._host = os.getppid()
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        for number in _SIGNALS:
            signal.signal(number, _wake)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._incoming, selectors.EVENT_READ, self._hear)
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_signals)
        self._fork(first)

    def serve(self) -> NoReturn:
        """Serve one attempt after another until the host hangs up."""
        while True:
            left = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            for key, _ in self._selector.select(left):
                # One before it may have closed this one.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            if left == 0.0:
                self._kill_at = None
                self._kill_children()

    def _hear(self) -> None:
        """Pass on the host's lines; a launch to a new process."""
        *lines, self._rest = (self._rest + (chunk := os.read(self._incoming, CHUNK))).split(b"\n")
        for line in lines:
            if line.startswith(_END):
                chunk = b""
                break
            if line.startswith(_LAUNCH):
                self._current = self._fork(self._attempt)
            if self._current is not None:
                _write(self._current.lines, line + b"\n")
        if not chunk:
            self._hang_up()

    def _hang_up(self) -> None:
        """Have all processes end, as the host did or asked for, and this one after them."""
        self._hung_up = True
        self._kill_at = self._kill_at or time.monotonic() + END_SECONDS
        self._stop_listening(self._incoming)
        for child in self._children.values():
            os.close(child.lines)
            child.lines = os.open(os.devnull, os.O_WRONLY)
        self._end_if_alone()

    def _stop_listening(self, to: int) -> None:
        with suppress(KeyError):  # it has stopped already
            self._selector.unregister(to)

    def _end_if_alone(self) -> None:
        if self._hung_up and not self._children:
            os._exit(0)

    def _on_signals(self) -> None:
        numbers = set(os.read(self._woken, CHUNK))
        # Linux also sends SIGHUP when the host's thread that started us ends.
        if signal.SIGTERM in numbers or (signal.SIGHUP in numbers and os.getppid() != self._host):
            for child in self._children.values():
                # What it said before may be read after the signal.
                self._read_notes(child)
            at_work = [child for child in self._children.values() if not child.over]
            if not at_work:
                # One may still release its session.
                self._hang_up()
            for child in at_work:
                os.kill(child.pid, signal.SIGTERM)
            # It may be stopped, or user code may have made it deaf.
            self._kill_at = self._kill_at or time.monotonic() + END_SECONDS
        self._reap()

    def _reap(self) -> None:
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._on_exit(child, status)

    def _on_exit(self, child: _Child, status: int) -> None:
        self._read_notes(child)
        self._stop_listening(child.notes)
        os.close(child.notes)
        os.close(child.lines)
        del self._children[child.pid]
        self._current = None if self._current is child else self._current
        if not child.over:
            self._end_as(child, status)
        self._end_if_alone()

    def _end_as(self, child: _Child, status: int) -> NoReturn:
        """End as an attempt's process did, or say which task's code ended that."""
        self._kill_children()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            with suppress(OSError):  # of SIGKILL, nobody can set it
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        code = os.WEXITSTATUS(status)
        if child.tasks and not child.leaves:
            # The last one that began. Of several, nobody can say whose code it was.
            task, (try_number, everywhere) = next(reversed(child.tasks.items()))
            whose = f"task {task!r}" if len(child.tasks) == 1 else f"one of the tasks {sorted(child.tasks)}"
            what = f"the code of {whose} ended its process with exit status {code}: return or raise instead"
            error = as_json(ErrorInfo(type=PROCESS_ENDED, message=what))
            fields = {"task": task, "try_number": try_number, "error": error, "everywhere": everywhere}
            # It may have been interrupted in the middle of a line.
            _write(self._outgoing, b"\n" + dumps({"timed_out": fields}).encode() + b"\n")
        os._exit(code)

    def _kill_children(self) -> None:
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)

    def _read_notes(self, child: _Child) -> None:
        while True:
            try:
                chunk = os.read(child.notes, CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                self._stop_listening(child.notes)
                return
            *lines, child.rest = (child.rest + chunk).split(b"\n")
            for line in lines:
                ((kind, fields),) = loads(line).items()
                self._note(child, kind, fields)

    def _note(self, child: _Child, kind: str, fields: Any) -> None:
        if kind == "ready":
            said, self._kept = fields
            child.over = True
            _write(self._outgoing, dumps({"ready": said}).encode() + b"\n")
        elif kind == "began":
            child.tasks[fields[0]] = fields[1], fields[2]
        elif kind == "ended":
            child.tasks.pop(fields, None)
        elif kind == "leaves":
            child.leaves = True
        elif kind == "over":
            child.over = True

    def _fork(self, body: Body) -> _Child:
        self._end_leftovers()
        (heard, lines), (notes, noted) = os.pipe(), os.pipe()
        os.set_blocking(notes, False)
        pid = os.fork()
        if pid == 0:
            os.close(lines)
            os.close(notes)
            self._become_child(body, heard, Notes(noted))
        os.close(heard)
        os.close(noted)
        child = self._children[pid] = _Child(pid, lines, notes)
        self._selector.register(notes, selectors.EVENT_READ, lambda: self._read_notes(child))
        return child

    def _end_leftovers(self) -> None:
        """Kill all but the last process of an attempt that is over, which may still release its session."""
        for child in [each for each in self._children.values() if each.over and each is not self._current]:
            os.kill(child.pid, signal.SIGKILL)

    def _become_child(self, body: Body, heard: int, notes: Notes) -> NoReturn:
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        for other in self._children.values():
            os.close(other.lines)
            os.close(other.notes)
        for end in (self._incoming, self._woken, self._wakes):
            os.close(end)
        _seed()
        status = 1
        try:
            body(
                os.fdopen(heard, encoding="utf-8"), os.fdopen(self._outgoing, "w", encoding="utf-8"), notes, self._kept
            )
            status = 0
        except BaseException:  # noqa: BLE001 - nobody else would say what it was
            write_error(masked(traceback.format_exc()))
        notes.leave(status)


def _seed() -> None:
    """Numbers that are random in one attempt must not be the same in the next one. Python's own are seeded anew."""
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()


def _write(to: int, data: bytes) -> None:
    """Write all of it, unless nobody reads it any more."""
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(to, data) :]


def _wake(number: int, frame: object) -> None:
    """The selector is woken by the pipe."""
