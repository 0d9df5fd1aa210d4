"""A run-starter whose drivers are threads that report success at once. Everything else is real.

Run it as ``python -m tests.support.instant_starter``; it reads the service's settings. Further
variables: ``INSTANT_SECONDS`` is the duration of a run. Logical dates in ``INSTANT_FAIL`` (ISO
dates, comma-separated) fail, those in ``INSTANT_HANG`` do not end. Each attempt reports
``INSTANT_CORE_SECONDS`` as its cost. ``INSTANT_LOG`` is a file that gets one JSON line for each
run's work: run, attempt, interval, and when it began and ended (machine-wide monotonic clock). With
``INSTANT_OUT``, each run stages a folder ``day=DATE`` there, containing a file that names the run. If
the backfill's conf has ``table``, they stage rows of a table with that identity instead, by its ``column``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from confluent_kafka import Producer

from retrofill.driver.execute import Result
from retrofill.driver.publishing import Publisher, publish_all
from retrofill.driver.session import Sessions
from retrofill.outputs.kept import NotKept
from retrofill.outputs.reviewed import remember
from retrofill.outputs.staging import Staging
from retrofill.outputs.tables.publication import TablePublication, Tables
from retrofill.protocol.facts import ErrorInfo, as_json, error_info
from retrofill.protocol.launch import Launch, LaunchedRun, Piece
from retrofill.protocol.table_output import TableOutput
from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.bus.clients import producer
from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.bus.service import Context, run_service
from retrofill_core.contract.runs import (
    AttemptEnded,
    Report,
    RunBaseChanged,
    RunBegan,
    RunReport,
    RunReported,
    RunStaged,
    TaskReported,
)
from retrofill_core.contract.topics import RUN_STARTER, Topic
from retrofill_core.settings import Settings
from run_starter.executors import Condition, Host, Key, LaunchRequest
from run_starter.handler import CHANNELS, StarterHandler


class InstantExecutor:
    """Threads that follow the driver protocol but do no work."""

    def __init__(self, settings: Settings, seconds: float, failing: frozenset[str], hanging: frozenset[str]) -> None:
        self._slots = settings.driver_slots
        self._topic = f"{settings.topic_prefix}{Topic.RUN_REPORTS}"
        self._producer: Producer = producer(settings, "instant-driver")
        self._threads = ThreadPoolExecutor(self._slots)
        path = os.environ.get("INSTANT_LOG")
        self._log = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._hosted: dict[Key, threading.Event] = {}
        self._lock = threading.Lock()
        self.seconds = seconds
        self.failing = failing
        self.hanging = hanging
        self.out = os.environ.get("INSTANT_OUT")
        self.host: Host | None = None

    def condition(self) -> Condition:
        return Condition(self._slots)

    def waiting(self) -> list[LaunchRequest]:
        """A launch waits for its thread at most until the last one returned."""
        return []

    def hosted(self) -> set[Key]:
        with self._lock:
            return set(self._hosted)

    def launch(self, launch: LaunchRequest) -> None:
        ended = threading.Event()
        with self._lock:
            self._hosted[launch.key] = ended
        self._threads.submit(self._run, launch, ended)

    def end(self, key: Key) -> None:
        with self._lock:
            if key in self._hosted:
                self._hosted[key].set()

    def close(self) -> None:
        with self._lock:
            for ended in self._hosted.values():
                ended.set()
        self._threads.shutdown(wait=True)

    def log(self, line: dict[str, Any]) -> None:
        """Log one run's work, if asked to."""
        if self._log is not None:
            # One O_APPEND write, so lines of several processes do not mix.
            os.write(self._log, json.dumps(line).encode() + b"\n")

    def say(self, report: Report) -> None:
        """Publish a report and wait until it is acknowledged."""
        self._producer.produce(
            self._topic,
            key=report.backfill_id.encode(),
            value=report.encode(),
            headers=wire_headers(headers_of(report, "driver")),
        )
        self._producer.flush()

    def _run(self, request: LaunchRequest, ended: threading.Event) -> None:
        assert self.host is not None
        driver = InstantDriver(self, self.host, request, ended)
        reported = driver.run()
        with self._lock:
            del self._hosted[request.key]
        self.host.driver_ended(request, reported=reported, reason="ended", begun=driver.begun)


class InstantDriver:
    """The driver of one attempt."""

    def __init__(self, executor: InstantExecutor, host: Host, request: LaunchRequest, ended: threading.Event) -> None:
        self._executor = executor
        self._host = host
        self._request = request
        # As a driver process receives it.
        self._launch = Launch.of(request.as_json())
        self._ended = ended
        talk = Talk(executor, host, request, self._launch)
        # ``Talk`` implements what a publisher needs of both.
        # It stages folders only, which need no Spark.
        self._tables = NoTables(self._launch, cast(Sessions, None), lambda _: False, print)
        self._publisher = Publisher(self._launch, talk, talk, self._report_end, self._tables)  # type: ignore[arg-type]
        self.begun: int | None = None

    def run(self) -> bool:
        """Execute the runs, one by one. Returns whether the driver reported the attempt's end."""
        went_on = True
        for run in self._launch.runs:
            if self._host.may_begin(self._request, run.id) is None:
                break
            self.begun = run.id
            self._say(RunBegan, run, spark={"id": "instant"})
            succeeded = self._execute(run)
            went_on = succeeded is not None
            if not succeeded:
                break
        self._publisher.finish()
        if went_on:
            used = os.environ.get("INSTANT_CORE_SECONDS")
            fields = {"state": "done", "stays": True, "cost": None if used is None else {"core_seconds": used}}
            self._executor.say(AttemptEnded.model_validate({**self._request.about, **fields}))
        return went_on

    def _execute(self, run: LaunchedRun) -> bool | None:
        """Execute one run. Returns whether it succeeded, ``None`` if the driver was ended."""
        if run.accepted_attempt is not None:
            ((_, result),) = publish_all(self._launch, run.accepted_attempt, [run], self._tables)
            self._report(run, result)
            return result.succeeded
        if not self._work(run):
            return None
        failed = run.interval_start.date().isoformat() in self._executor.failing
        error = ErrorInfo(type="ValueError", message="this day fails") if failed else None
        for task in self._launch.pipeline.tasks:
            self._say(TaskReported, run, task=task.name, state="running")
            self._say(
                TaskReported,
                run,
                task=task.name,
                state="failed" if failed else "succeeded",
                error=error and as_json(error),
            )
        if (self._executor.out is not None or "table" in self._launch.conf) and not failed:
            try:
                outputs = self._stage(run)
            except NotKept as e:
                self._report(run, Result(False, error_info(e)))
                return False
            self._publisher.publish([replace(run, outputs=outputs)], {run.id: self._bases(run, outputs)})
        else:
            self._report(run, Result(not failed, error))
        return not failed

    def _work(self, run: LaunchedRun) -> bool:
        """Simulate the run's work. Returns whether it finished without being ended."""
        began = time.monotonic()
        hangs = run.interval_start.date().isoformat() in self._executor.hanging
        done = not self._ended.wait(None if hangs else self._executor.seconds)
        self._executor.log(
            {
                "run": run.id,
                "attempt": run.attempt,
                "interval": run.interval_start.isoformat(),
                "began": began,
                "ended": time.monotonic(),
            }
        )
        return done

    def _stage(self, run: LaunchedRun) -> tuple[str, ...]:
        """Write and seal the day's folder, or what it was before, as a driver does."""
        if "table" in self._launch.conf:
            name, column = (self._launch.conf[key] for key in ("table", "column"))
            return (str(TableOutput(f"lake.{name}", "lake.staged", column, "date", "delta", identity=name)),)
        staging = Staging(self._launch, Piece((run,)))
        if run.restores is not None:
            for output in run.outputs:
                staging.restore("restore", output)
            return staging.seal()[run.id]
        folder = Path(staging.stage("only", f"{self._executor.out}/day={run.interval_start.date().isoformat()}"))
        folder.mkdir()
        (folder / "part-0").write_text(f"run {run.id}")
        return staging.seal()[run.id]

    def _bases(self, run: LaunchedRun, outputs: tuple[str, ...]) -> tuple[str, ...]:
        # Of its tables, nobody knows what they have.
        if not self._launch.review or "table" in self._launch.conf:
            return ()
        return remember(self._launch, Piece((run,)), {run.id: outputs}, lambda: None)[run.id]

    def _report_end(self, _launch: Launch, run: LaunchedRun, _reporter: object, result: Result) -> None:
        self._report(run, result)

    def _report(self, run: LaunchedRun, result: Result) -> None:
        if result.changed:
            return self._say(RunBaseChanged, run, changed=result.changed, bases=result.bases)
        error = result.error and as_json(result.error)
        state, published = "succeeded" if result.succeeded else "failed", [as_json(each) for each in result.published]
        return self._say(RunReported, run, state=state, error=error, published=published)

    def _say(self, report: type[RunReport], run: LaunchedRun, **fields: Any) -> None:
        self._executor.say(report.model_validate({**self._request.about, **run.about, **fields}))


class NoTables(Tables):
    """Without Spark."""

    def publish(self, publication: TablePublication, *, again: bool) -> None:
        publication.settle(dict.fromkeys(publication.wanted, "1"))


class Talk:
    """Replaces a driver's reporter and its pipe to the host, in one process."""

    def __init__(self, executor: InstantExecutor, host: Host, request: LaunchRequest, launch: Launch) -> None:
        self._executor = executor
        self._host = host
        self._request = request
        self._launch = launch
        self._asked: list[int] = []

    def staged(self, run: LaunchedRun, outputs: tuple[str, ...], bases: tuple[str, ...] = ()) -> None:
        self._executor.say(RunStaged(**self._request.about, **run.about, outputs=outputs, bases=bases))

    def say(self, kind: str, run_ids: list[int]) -> None:
        assert kind == "may_publish"
        self._asked = run_ids

    def hear(self, kind: str) -> bool:
        assert kind == "publish"
        return self._host.may_publish(self._request, self._asked)


def make(context: Context) -> StarterHandler:
    """The real handler with instant drivers."""
    failing, hanging = (frozenset(os.environ.get(name, "").split(",")) for name in ("INSTANT_FAIL", "INSTANT_HANG"))
    executor = InstantExecutor(context.settings, float(os.environ.get("INSTANT_SECONDS", "0")), failing, hanging)
    handler = StarterHandler(context, {DEFAULT_POOL: executor})
    executor.host = handler.host
    return handler


if __name__ == "__main__":
    sys.exit(run_service(RUN_STARTER, make, CHANNELS))
