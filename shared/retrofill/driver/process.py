"""A driver's process: its connection with its host, how it notices that the host has exited, how it ends, and its output.

What is sent is written by functions that were imported as such: user code may replace what a module has.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from json import dumps, loads
from queue import SimpleQueue
from typing import IO, Any, Callable, NoReturn

from retrofill import attempt_logs
from retrofill.attempt_logs import VARIABLE, open_log
from retrofill.log import get_log
from retrofill.masking import masked
from retrofill.protocol.launch import Launch, Piece, interval_of
from retrofill.system.processes import on_signals
from retrofill.tracing import flush

log = get_log(__name__)
INTERRUPT_SECONDS = 1.5
REAP_SECONDS = 1.0
PR_SET_PDEATHSIG = 1
# The exit status of a driver whose lease ended.
LEASE_OVER = 75


class Ending:
    """Ends the process, after briefly trying to end the work that it started elsewhere."""

    def __init__(self, leave: Callable[[int], object] = os._exit) -> None:
        self.leave = leave
        self._once = threading.Lock()
        self.silence: Callable[[], object] | None = None
        self.tell: Callable[[str, bool], object] | None = None
        self.work: Callable[[], object] | None = None

    def end(self, why: str, status: int = 1, *, shared: bool = False) -> None:
        """End the started work (best effort, with a time limit) and the process.

        Only the first call has an effect. ``shared``: the Spark server is lost, which other attempts use, too.
        """
        if not self._once.acquire(blocking=False):
            return
        log.log(logging.WARNING if status else logging.INFO, "driver_ends", why=why)
        if self.silence is not None:
            # Interrupted tasks fail, which must not be reported as the run's failure.
            self.silence()
        if self.tell is not None and status:
            self.tell(why, shared)
        last = [each for each in (self.work, flush) if each is not None]
        stopper = threading.Thread(target=_quietly, args=last, daemon=True)
        stopper.start()
        stopper.join(INTERRUPT_SECONDS)
        self.leave(status)

    def end_now(self, why: str) -> None:
        """End the process without any cleanup, because the lease is over."""
        log.error("driver_ends_now", why=why)
        self.leave(LEASE_OVER)


def end_with_host(ending: Ending) -> None:
    """End the driver on SIGTERM and when its parent exits. Call from the main thread."""
    parent = os.getppid()

    def end(number: int) -> None:
        # Linux also sends SIGHUP when the parent's thread that started us ends: check the parent.
        if number == signal.SIGTERM or os.getppid() != parent:
            ending.end("ended by a signal")

    on_signals((signal.SIGTERM, signal.SIGHUP), end)
    hang_up_with_parent()


def hang_up_with_parent() -> None:
    """Have this process get SIGHUP when its parent exits, if the system can: the end of the input is noticed in any case."""
    if (prctl := getattr(ctypes.CDLL(None), "prctl", None)) is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGHUP)


def end_children() -> None:
    """End the processes of pools that user code left, as Python does at its exit, which a driver skips."""
    if (processes := sys.modules.get("multiprocessing.process")) is None:
        return
    # A pool starts others for those that end.
    processes.BaseProcess.start = _refuse
    for child in processes.active_children():
        with suppress(Exception):  # user code may have changed it
            child.kill()
    for child in processes.active_children():
        child.join(REAP_SECONDS)


def _refuse(_: object) -> NoReturn:
    raise RuntimeError("the attempt is over")


def _quietly(*works: Callable[[], object]) -> None:
    for work in works:
        try:
            work()
        except Exception as e:  # noqa: BLE001 - the process ends anyway, and the next attempt ends this work
            log.warning("work_not_interrupted", error=str(e))


MAX_REASON = 1000
# What a host sends, besides what a handler is for.
KINDS = ("settings", "launch", "begin", "publish", "code")


class Conversation:
    """Messages to and from the host.

    A thread reads them, so the host's exit is always noticed at once.
    """

    def __init__(self, incoming: IO[str], outgoing: IO[str], ending: Ending) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._ending = ending
        self._messages: dict[str, SimpleQueue[Any]] = {kind: SimpleQueue() for kind in KINDS}
        self._handlers: dict[str, Callable[[Any], object]] = {
            kind: messages.put for kind, messages in self._messages.items()
        }
        self._saying = threading.Lock()
        ending.tell = lambda why, shared: self.say("lost", {"why": masked(why)[:MAX_REASON], "shared": shared})
        threading.Thread(target=self._read, name="host", daemon=True).start()

    def say(self, kind: str, fields: object) -> None:
        """Send one message. Ends the driver if the connection is closed."""
        try:
            with self._saying:
                self._outgoing.write(dumps({kind: fields}) + "\n")
                self._outgoing.flush()
        except OSError as e:
            self._ending.end(f"the host hung up: {e}")

    def hear(self, kind: str) -> Any:
        """Wait for the next message of a kind and return its content."""
        return self._messages[kind].get()

    def on(self, kind: str, handler: Callable[[Any], object]) -> None:
        """Have the reading thread call ``handler`` with the content of each message of a kind."""
        self._handlers[kind] = handler

    def _read(self) -> None:
        try:
            for line in self._incoming:
                message = loads(line)
                if message.get("end"):
                    break
                ((kind, fields),) = message.items()
                self._handlers[kind](fields)
            self._ending.end("ended by the host", status=0)
        except (ValueError, KeyError, AttributeError, OSError) as e:
            self._ending.end(f"invalid message from the host: {e}")


STDOUT, STDERR = 1, 2


class Output:
    """The standard output and error of this process."""

    def __init__(self, channel: socket.socket | None = None) -> None:
        """Without ``channel``, they stay what they are: the host redirected them at the start."""
        self._channel = channel

    @classmethod
    def of_pool(cls) -> Output:
        """Of a driver that serves attempts one after another."""
        number = os.environ.pop(VARIABLE, None)
        if number is None:
            return cls()
        channel = socket.socket(fileno=int(number))
        # Child processes of user code do not get it.
        channel.set_inheritable(False)
        return cls(channel)

    def begin(self, attempt_id: int) -> None:
        """From now on to the log of this attempt."""
        if self._channel is None:
            return
        try:
            pipe = open_log(self._channel, attempt_id)
        except OSError as e:
            # What is printed is then among the lines of all drivers.
            log.warning("attempt_log_not_opened", error=str(e))
            return
        _redirect(pipe)
        os.close(pipe)

    def mark(self, launch: Launch, piece: Piece) -> None:
        """Say that what follows belongs to these runs."""
        ids, interval = [run.id for run in piece.runs], interval_of(launch, piece)
        _flush()
        with suppress(OSError):  # nobody reads it
            os.write(
                STDERR, attempt_logs.signed(attempt_logs.of_runs(ids, interval.start, interval.end, piece.attempt))
            )


def _redirect(to: int) -> None:
    _flush()
    for number in (STDOUT, STDERR):
        os.dup2(to, number)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # user code closed it, or put something else there
            stream.flush()
