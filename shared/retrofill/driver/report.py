"""A driver's reports, in order, which its host publishes. If one cannot be delivered, the process ends."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import Any, Callable

from retrofill.driver.execute import OnTaskState, Result
from retrofill.driver.process import Conversation
from retrofill.protocol.facts import Cost, ErrorInfo, SparkApplication, as_json
from retrofill.protocol.launch import Launch, LaunchedRun, Piece
from retrofill.states import TaskState

Acknowledged = Callable[[], object]


class Wire:
    """The way of the process's reports, which are numbered, to its host.

    ``on_loss`` is called when a report could not be delivered. It must end the process: the reports
    would have a gap, and only a new attempt can report everything.
    """

    def __init__(self, host: Conversation, on_loss: Callable[[str], object]) -> None:
        self._host = host
        self._number = 0
        # By number, those that are not durable yet.
        self._open: dict[int, Acknowledged | None] = {}
        self._silent = False
        self._changed = threading.Condition()
        host.on("acknowledged", self._on_acknowledged)
        host.on("renewed", self._on_renewed)
        host.on("undelivered", on_loss)

    def send(
        self, kind: str, fields: dict[str, Any], acknowledged: Acknowledged | None = None, trace: str | None = None
    ) -> None:
        """Send a report. ``acknowledged`` is called from another thread once it is durable, or has renewed the lease."""
        sent_at = datetime.now(timezone.utc).isoformat()
        known = {name: value for name, value in fields.items() if value is not None}
        with self._changed:
            # While the process is ending, senders block until it exits.
            self._changed.wait_for(lambda: not self._silent)
            self._number += 1
            self._open[self._number] = acknowledged
            report = {"type": kind, "sent_at": sent_at, **known}
            self._host.say("report", {"number": self._number, "trace": trace, "report": report})

    def silence(self) -> None:
        """Send no more reports; senders block until the process exits."""
        with self._changed:
            self._silent = True

    def flush(self) -> None:
        """Wait until all reports are acknowledged.

        If that takes too long, the lease ends the process.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._open)

    def _on_acknowledged(self, number: int) -> None:
        """All reports up to this one are durable."""
        # Before a flush returns.
        durable = self._on_renewed(number)
        with self._changed:
            for each in durable:
                del self._open[each]
            self._changed.notify_all()

    def _on_renewed(self, number: int) -> list[int]:
        """All heartbeats up to this one count. Returns the numbers of the reports up to it that are not durable."""
        with self._changed:
            before = [each for each in self._open if each <= number]
            waiting = [self._open[each] for each in before]
        for acknowledged in waiting:
            if acknowledged is not None:
                acknowledged()
        return before


class Reporter:
    """The reports of one attempt."""

    def __init__(self, wire: Wire, launch: Launch) -> None:
        self._wire = wire
        self._launch = launch
        self._traces: dict[int, str | None] = {}
        self._shared = _Shared()
        # Of each run, if the attempt has one piece and Spark has reported it by now.
        self.cost_of_run: Callable[[], Cost | None] = lambda: None

    def trace(self, run: LaunchedRun, trace: str | None) -> None:
        """Send the reports of a run with this trace context."""
        self._traces[run.id] = trace

    def trace_of(self, run: LaunchedRun) -> str | None:
        return self._traces.get(run.id, self._launch.trace)

    def heartbeat(self, acknowledged: Acknowledged) -> None:
        """Report that the attempt is alive."""
        self._wire.send("AttemptHeartbeat", {}, acknowledged, self._launch.trace)

    def began(self, run: LaunchedRun, spark: SparkApplication | None) -> None:
        """Report that a run begins, before its code does."""
        self._send("RunBegan", run, spark=_data(spark))

    def of_tasks(self, piece: Piece) -> OnTaskState:
        """Returns what reports a task's new state, for each of its runs."""

        def report(task: str, state: TaskState, try_number: int = 1, error: ErrorInfo | None = None) -> None:
            about = {"task": task, "state": str(state), "try_number": try_number}
            for run in piece.runs:
                self._send("TaskReported", run, **about, error=self._shared.of(run, error))

        return report

    def staged(self, run: LaunchedRun, outputs: tuple[str, ...], bases: tuple[str, ...] = ()) -> None:
        """Report that a run's tasks succeeded and staged ``outputs``. ``bases``: the state of their places, for a review."""
        self._send("RunStaged", run, outputs=outputs, bases=bases or None)

    def ended(self, run: LaunchedRun, result: Result) -> None:
        """Report the end of a run, that it is left to another publisher, or that it waits for another review."""
        if result.put_off:
            return self._send("RunPublicationPutOff", run, error=self._shared.of(run, result.error))
        if result.changed:
            return self._send("RunBaseChanged", run, changed=result.changed, bases=result.bases)
        state = "succeeded" if result.succeeded else "failed"
        published = [as_json(each) for each in result.published] or None
        error = self._shared.of(run, result.error)
        about = {"error": error, "cost": _data(self.cost_of_run()), "published": published}
        return self._send("RunReported", run, state=state, **about)

    def attempt_ended(
        self, error: ErrorInfo | None = None, *, released: bool = False, stays: bool = False, cost: Cost | None = None
    ) -> None:
        """Report the attempt's end; returns when all its reports are acknowledged.

        ``error``: why its range failed as a whole or, if it is ``released``, why it could not publish. ``stays``: the
        process serves another attempt. ``cost``: what Spark used for it.
        """
        how = "released" if released else "done" if error is None else "failed"
        about = {"state": how, "error": _data(error), "stays": stays, "cost": _data(cost)}
        self._wire.send("AttemptEnded", about, trace=self._launch.trace)
        self._wire.flush()

    def _send(self, kind: str, run: LaunchedRun, **fields: Any) -> None:
        self._wire.send(kind, {**run.about, **fields}, trace=self.trace_of(run))


class _Shared:
    """The errors that runs have in common: all of one is sent with the first run only, as a range has thousands."""

    KEPT = 8

    def __init__(self) -> None:
        # Each of the last errors with its first run, the newest last.
        self._first: dict[ErrorInfo, int] = {}
        # Tasks and the publisher report at the same time.
        self._lock = threading.Lock()

    def of(self, run: LaunchedRun, error: ErrorInfo | None) -> dict[str, Any] | None:
        """The error as data, for a report about the run."""
        if error is None:
            return None
        with self._lock:
            first = self._first.setdefault(error, run.id)
            if len(self._first) > self.KEPT:
                del self._first[next(iter(self._first))]
        return as_json(error.of_run(run.id, first))


def _data(fact: Any) -> dict[str, Any] | None:
    return None if fact is None else as_json(fact)
