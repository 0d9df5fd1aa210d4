"""``spark-submit …/retrofill/driver/trial.py REQUEST RESULT``: executes intervals of a pipeline and publishes nothing.

Without a host: no lease, no reports. The tasks run as in a driver, in a classic session. What they have staged is looked at,
and deleted unless it is to be kept. ``REQUEST`` and ``RESULT`` are JSON files; the result is written after each step, so that
whatever ends this process leaves what was known.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# A script's directory is first in the path, and these modules would hide the standard library's.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
sys.path.insert(0, str(Path(__file__).absolute().parents[2]))

import logging
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Mapping, NoReturn, Sequence

from retrofill.driver.batch import Batch
from retrofill.driver.classic_session import ClassicSession
from retrofill.driver.config import Config, set_up
from retrofill.driver.execute import OnTaskState, Result, TaskTimedOut
from retrofill.driver.forking import Notes
from retrofill.driver.publishing import Publisher
from retrofill.driver.report import Reporter
from retrofill.driver.submit import Submits
from retrofill.outputs.kept import key_of
from retrofill.outputs.publication import own_folder
from retrofill.outputs.staging import Staging
from retrofill.outputs.summary import of_folder, of_table, rows_of_folder, rows_of_table
from retrofill.protocol.facts import ErrorInfo, as_json, error_info
from retrofill.protocol.launch import Launch, LaunchedRun, Piece, Task, interval_of
from retrofill.protocol.table_output import TableOutput
from retrofill.states import TaskState
from retrofill.user_code.loading import Code, CodeUnavailable

# Of one value that is shown.
MAX_CHARACTERS = 1000


class Record:
    """What became of the runs so far, as JSON data in a file."""

    def __init__(self, file: Path, launch: Launch) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._runs = {run.id: self._new(launch, run) for run in launch.runs}

    def _new(self, launch: Launch, run: LaunchedRun) -> dict[str, Any]:
        interval = interval_of(launch, run)
        times = {"interval_start": interval.start.isoformat(), "interval_end": interval.end.isoformat()}
        return {"id": run.id, **times, "state": "not begun", "error": None, "tasks": {}, "outputs": []}

    def run(self, id: int, **facts: Any) -> None:
        with self._lock:
            self._runs[id].update(facts)
            self._save()

    def task(self, id: int, name: str, **facts: Any) -> None:
        with self._lock:
            self._runs[id]["tasks"].setdefault(name, {}).update(facts)
            self._save()

    def output(self, id: int, output: Mapping[str, Any]) -> None:
        with self._lock:
            self._runs[id]["outputs"].append(output)
            self._save()

    def _save(self) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps({"runs": list(self._runs.values())}), "utf-8")
        draft.replace(self._file)


class Tasks(Reporter):
    """Records the states of tasks, where a driver reports them to its host."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def trace_of(self, run: LaunchedRun) -> str | None:  # noqa: ARG002 - as of a driver
        return None

    def of_tasks(self, piece: Piece) -> OnTaskState:
        def tell(task: str, state: TaskState, try_number: int = 1, error: ErrorInfo | None = None) -> None:
            known = {"state": str(state), "try_number": try_number, "error": error and as_json(error)}
            self._record.task(piece.id, task, **known)

        return tell


class Outputs(Publisher):
    """Looks at what was staged, where a driver publishes it."""

    def __init__(self, launch: Launch, session: ClassicSession, record: Record, rows: int) -> None:
        self._launch = launch
        self._sessions = session
        self._record = record
        self._rows = rows

    def publish(
        self,
        runs: Sequence[LaunchedRun],
        bases: Mapping[int, tuple[str, ...]],  # noqa: ARG002 - of a review
    ) -> None:
        for run in runs:
            for output in run.outputs:
                table = TableOutput.of(output)
                found = self._folder(run, Path(output)) if table is None else self._table(run, table)
                self._record.output(run.id, found)

    def finish(self) -> None:
        """Nothing is under way."""

    @property
    def finished(self) -> bool:
        return True

    def _folder(self, run: LaunchedRun, target: Path) -> dict[str, Any]:
        own = own_folder(target, key_of(self._launch.installation, run.id))
        (new,) = own.glob(f"{self._launch.attempt_id}.publish-*/new")
        if not self._launch.needs_session:
            # Only scripts ran, in sessions of their own.
            self._sessions.open()
        session = self._sessions.publisher()
        summary = of_folder(session, new)
        assert summary is not None
        rows = None if summary.rows is None else rows_of_folder(session, new)
        return {"output": str(target), "staged": str(new), **asdict(summary), **self._first(rows)}

    def _table(self, run: LaunchedRun, table: TableOutput) -> dict[str, Any]:
        session, interval = self._sessions.publisher(), interval_of(self._launch, run)
        summary = of_table(session, table, interval, staged=True)
        rows = rows_of_table(session, table, interval, staged=True)
        return {"output": table.table, "staged": table.staged, **asdict(summary), **self._first(rows)}

    def _first(self, rows: Any) -> dict[str, Any]:
        """The schema and the first rows."""
        if rows is None:
            return {"schema": [], "first": []}
        schema = [[field.name, field.dataType.simpleString()] for field in rows.schema.fields]
        first = [
            [None if value is None else str(value)[:MAX_CHARACTERS] for value in row]
            for row in rows.limit(self._rows).collect()
        ]
        return {"schema": schema, "first": first}


def main(request: Path, result: Path) -> None:
    asked = json.loads(request.read_text("utf-8"))
    # It may have secrets, and user code runs in this process.
    request.unlink()
    config, launch = Config.of(asked["settings"]), Launch.of(asked["launch"])
    set_up(config)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    record = Record(result, launch)
    session, submits = ClassicSession(launch), Submits(config, launch)
    present = [launch.runs[0].id]

    def leave(error: ErrorInfo) -> NoReturn:
        """End the process: a task goes on, or Spark is gone."""
        record.run(present[0], state="failed", error=as_json(error))
        submits.end()
        if batch.staging is not None and not asked["keep"]:
            with suppress(Exception):  # Spark may be gone
                discard(batch.staging)
        os._exit(1)

    def lost(why: str, _: bool) -> None:
        leave(ErrorInfo(type="DriverLost", message=why))

    def stuck(task: Task, try_number: int, error: TaskTimedOut) -> None:
        record.task(present[0], task.name, state="failed", try_number=try_number, error=as_json(error_info(error)))
        leave(error_info(error))

    outputs = Outputs(launch, session, record, asked["rows"])
    batch = Batch(launch, session, submits, Code(_no_archive), outputs, Notes(), lost, stuck)
    failure = batch.prepare()
    for number, piece in enumerate(launch.pieces):
        if number and not batch.next():
            break
        present[0] = piece.id
        record.run(piece.id, state="running")
        ended = failure or batch.run(piece, Tasks(record)) or Result(True)
        if batch.staging is not None and not asked["keep"]:
            discard(batch.staging)
        error = None if ended.error is None else as_json(ended.error)
        record.run(piece.id, state="succeeded" if ended.succeeded else "failed", error=error)
        if not ended.succeeded:
            break
    batch.release()


def discard(staging: Staging) -> None:
    """Delete what is staged, and the directories for it, which no later attempt would find."""
    staging.discard()
    for folder in staging.own_folders():
        with suppress(OSError):
            folder.rmdir()
            folder.parent.rmdir()


def _no_archive(sha256: str) -> Path:
    raise CodeUnavailable(f"there is no archive {sha256}: the code is where it is")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
