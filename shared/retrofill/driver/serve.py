"""Executes launches: lease, session, permission to begin each run, tasks, publication, reports."""

from __future__ import annotations

import base64
import io
import threading
import time
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Callable, Protocol

from retrofill.driver.batch import Batch
from retrofill.driver.config import Config, set_up
from retrofill.driver.execute import Result, TaskTimedOut
from retrofill.driver.forking import Notes
from retrofill.driver.lease import Lease
from retrofill.driver.process import Conversation, Ending, Output, end_children, end_with_host
from retrofill.driver.publishing import Ended, Publisher, may_publish, publish_all, put_off
from retrofill.driver.report import Reporter, Wire
from retrofill.driver.session import Sessions
from retrofill.driver.submit import Submits
from retrofill.log import bound, get_log
from retrofill.outputs.tables.publication import NotPermitted, Tables
from retrofill.protocol.facts import Cost, ErrorInfo, SparkApplication, as_json, error_info
from retrofill.protocol.launch import Launch, LaunchedRun, Piece, Task
from retrofill.protocol.table_output import TableOutput
from retrofill.states import AttemptMode
from retrofill.system.files import PrivateFolder
from retrofill.tracing import fail_span, flush, span
from retrofill.user_code.loading import Code, CodeUnavailable


class Fetched:
    """The folders with the archives of code that this process has used, by hash. Thread-safe."""

    def __init__(self, host: Conversation) -> None:
        self._host = host
        self._folders: dict[str, Path] = {}
        self._lock = threading.Lock()

    def __call__(self, sha256: str) -> Path:
        """The folder with the code of this hash. Raises ``CodeUnavailable``."""
        with self._lock:
            known = self._folders.get(sha256)
            if known is None or not known.is_dir():
                self._host.say("code", sha256)
                known = self._folders[sha256] = _folder(self._host.hear("code"))
            return known


def _folder(answer: dict[str, Any]) -> Path:
    if "error" in answer:
        raise CodeUnavailable(answer["error"])
    if "folder" in answer:
        return Path(answer["folder"])
    # This machine is another one than the host's. The folder is there as long as this process lives.
    folder = PrivateFolder().path
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(answer["archive"]))) as zipped:
        zipped.extractall(folder)
    return folder


log = get_log(__name__)


class Work(Protocol):
    """What a driver does with the runs of one attempt."""

    def prepare(self) -> Result | None:
        """Get ready, without user code. Returns the first run's result if that failed."""

    def run(self, piece: Piece, reporter: Reporter) -> Result | None:
        """Execute a piece. ``None``: the results of its runs are reported separately."""

    def application(self) -> SparkApplication | None:
        """The Spark application that it uses, if it is known."""

    def next(self) -> bool:
        """Clear what the run left behind; another one follows. Returns whether that is possible."""

    def finish(self) -> None:
        """Wait until everything is reported."""

    def cost(self) -> Cost | None:
        """What Spark used, if it tells."""

    def interrupt(self) -> None:
        """End what runs elsewhere."""

    def release(self) -> None:
        """Release resources. Called again, it does nothing."""


@dataclass(frozen=True)
class Executed:
    """How the pieces of an attempt went. ``error``: why its range failed as a whole, or it published nothing.

    ``put_off``: it publishes for other attempts, and could not.
    """

    error: ErrorInfo | None = None
    put_off: bool = False


def serve_attempt(
    config: Config,
    sessions_of: Callable[[Launch], Sessions],
    incoming: IO[str],
    outgoing: IO[str],
    notes: Notes,
    *,
    output: Output | None = None,
    once: bool = False,
) -> None:
    """Serve one attempt in this process, which its parent forked for it. ``once``: see ``Server``."""
    ending = Ending(notes.leave)
    end_with_host(ending)
    set_up(config)
    host = Conversation(incoming, outgoing, ending)
    wire = Wire(host, on_loss=ending.end)
    Server(config, ending, host, wire, sessions_of, notes=notes, output=output, once=once).serve_one()
    end_children()
    flush()


class Server:
    """Serves an attempt in this process."""

    def __init__(
        self,
        config: Config,
        ending: Ending,
        host: Conversation,
        wire: Wire,
        sessions_of: Callable[[Launch], Sessions],
        *,
        notes: Notes | None = None,
        output: Output | None = None,
        once: bool = False,
    ) -> None:
        """``once``: no parent serves the next attempt, so the session is released before this one is done."""
        self._once = once
        self._notes = notes or Notes()
        self._output = output or Output()
        self._config = config
        self._ending = ending
        self._host = host
        self._sessions_of = sessions_of
        self._code = Code(Fetched(host))
        self._wire = wire
        ending.silence = self._silence

    def serve_one(self) -> None:
        """Wait for a launch, execute it, and release its resources."""
        launch = Launch.of(self._host.hear("launch"))
        with bound(backfill=launch.backfill_id, attempt=launch.attempt_id):
            self._serve(launch)

    def _silence(self) -> None:
        """Nothing that tasks make of the end counts: neither a failure, nor an exit."""
        self._notes.leaves()
        self._wire.silence()

    def _serve(self, launch: Launch) -> None:
        submits = Submits(self._config, launch)
        reporter = Reporter(self._wire, launch)
        work = self._work_of(launch, submits, reporter)
        self._ending.work = work.interrupt
        lease = Lease(
            reporter.heartbeat,
            launch.lease_seconds,
            expired=lambda: self._ending.end_now("the lease is over"),
            renewed=submits.renew,
        )
        self._output.begin(launch.attempt_id)
        lease.start()
        executed = self._execute(launch, work, reporter, lease)
        work.finish()
        reporter.attempt_ended(executed.error, released=executed.put_off, stays=not self._once, cost=work.cost())
        lease.stop()
        if self._once:
            work.release()
        released = threading.Event()
        # Whoever ends this process from now on waits for that.
        self._ending.work = released.wait
        self._host.say("done", {"reported": True})
        self._notes.over()
        # Meanwhile the host learns of the end and finds the next launch.
        work.release()
        released.set()

    def _work_of(self, launch: Launch, submits: Submits, reporter: Reporter) -> Work:
        def lost(why: str, shared: bool) -> None:
            self._ending.end(why, shared=shared)

        sessions = self._sessions_of(launch)
        tables = Tables(launch, sessions, partial(may_publish, self._host), lost)
        if launch.mode == AttemptMode.PUBLISH:
            return Publications(launch, sessions, tables, self._ended)
        publisher = Publisher(launch, reporter, self._host, self._ended, tables)
        return Batch(launch, sessions, submits, self._code, publisher, self._notes, lost, stuck=self._leave)

    def _leave(self, task: Task, try_number: int, error: TaskTimedOut) -> None:
        """End the process for a task that does not end. The host reports it, once it has exited."""
        self._wire.silence()
        self._wire.flush()
        about = {"task": task.name, "try_number": try_number, "error": as_json(error_info(error))}
        self._host.say("timed_out", about)
        self._ending.end(str(error))

    def _execute(self, launch: Launch, work: Work, reporter: Reporter, lease: Lease) -> Executed:
        """Execute the pieces, one by one, until one fails or must not begin."""
        failure, last = work.prepare(), Executed()
        for piece in launch.pieces:
            if piece.runs[0] is not launch.runs[0] and not work.next():
                break
            asked = time.monotonic()
            self._host.say("may_begin", piece.id)
            left = self._host.hear("begin")
            if left is None or not lease.last_until(asked + left):
                break
            self._output.mark(launch, piece)
            with bound(run=piece.id):
                result = self._run(launch, piece, work, reporter, failure)
            if result.put_off:
                last = Executed(result.error, put_off=True)
            elif not result.succeeded:
                return Executed(result.error if _splits(piece, result) else None)
        return last

    def _run(self, launch: Launch, piece: Piece, work: Work, reporter: Reporter, failure: Result | None) -> Result:
        """Execute a piece, and report the results of its runs unless it is a range to split."""
        about: dict[str, str | int] = {
            "pipeline": launch.pipeline.name,
            "backfill": launch.backfill_id,
            "run": piece.id,
            "attempt": piece.attempt,
        }
        with span("run", launch.trace, **about) as trace:
            for run in piece.runs:
                reporter.trace(run, trace)
                reporter.began(run, work.application())
            result = failure or work.run(piece, reporter)
            if result is None:
                return Result(True)
            if not (result.succeeded or result.put_off):
                # What it started must have ended when another attempt may begin.
                work.release()
            if result.error is not None:
                fail_span(f"{result.error.type}: {result.error.message}")
        reported = failure is None and launch.mode == AttemptMode.PUBLISH
        for run in () if reported or _splits(piece, result) else piece.runs:
            self._ended(launch, run, reporter, result)
        return result

    def _ended(self, _: Launch, run: LaunchedRun, reporter: Reporter, result: Result) -> None:
        reporter.ended(run, result)


def _splits(piece: Piece, result: Result) -> bool:
    """Whether its runs are to be tried in smaller ranges."""
    return piece.is_range and not (result.succeeded or result.put_off or result.everywhere)


class Publications:
    """Publishes the output of accepted runs whose driver was lost.

    Needs no user code, and a session only for tables.
    """

    def __init__(self, launch: Launch, sessions: Sessions, tables: Tables, ended: Ended) -> None:
        self._sessions = sessions
        self._tables = tables
        self._launch = launch
        self._ended = ended
        self._needs_spark = any(TableOutput.of(output) for run in launch.runs for output in run.outputs)

    def prepare(self) -> Result | None:
        try:
            if self._needs_spark:
                self._sessions.open()
        except Exception as e:  # noqa: BLE001 - the run reports any error of Spark
            self._tables.leave_if_lost(e)
            # It did not get as far as the output.
            return put_off(e)
        return None

    def run(self, piece: Piece, reporter: Reporter) -> Result:
        """Report the result of each run. Returns that of one that is put off, if any is."""
        attempt = piece.runs[0].accepted_attempt
        assert attempt is not None
        waits = Result(True)
        try:
            for run, result in publish_all(self._launch, attempt, piece.runs, self._tables):
                self._ended(self._launch, run, reporter, result)
                waits = result if result.put_off else waits
        except NotPermitted as e:
            # The runs are another attempt's.
            return put_off(e)
        return waits

    def application(self) -> SparkApplication | None:
        return self._sessions.application() if self._needs_spark else None

    def next(self) -> bool:
        """Nothing is left behind."""
        return True

    def finish(self) -> None:
        """Everything is reported."""

    def cost(self) -> None:
        """Nothing runs in Spark."""

    def interrupt(self) -> None:
        """Nothing runs elsewhere."""

    def release(self) -> None:
        if self._needs_spark:
            self._sessions.release()
            self._sessions.release_publisher()
