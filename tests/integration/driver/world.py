"""Executors that start real drivers, and the host that records what became of them."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from tests.support.installation import Installation, until
from tests.support.loading import definition_of, load_pipelines

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import AttemptMode
from retrofill_core.attempt_logs import folder_of
from retrofill_core.bus.clients import producer
from retrofill_core.contract.runs import Report
from retrofill_core.contract.topics import Topic
from retrofill_core.settings import Settings
from retrofill_core.user_code.unpacked import code_of
from retrofill_tools.client.attempts import OnDisk, lines
from run_starter.executors import NOT_ALLOWED, Launcher, LaunchRequest, OnDelivery, TimedOut
from run_starter.executors.answers import SOURCE
from run_starter.executors.build import build_executors
from run_starter.host.report_wire import ReportWire

CODE = """
import os, time
from pathlib import Path
from pyspark.sql.functions import udf
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", timezone="America/New_York", spark_conf={"spark.sql.shuffle.partitions": 3})

@p.task
def work(run):
    out = Path(run.conf["out"])
    print("printed by the user")
    if run.conf.get("slow"):
        @udf("int")
        def tick(_):
            while True:
                (out / "beat").write_text(str(time.monotonic()))
                time.sleep(0.05)
        (out / "pid").write_text(str(os.getpid()))
        run.spark.range(1).select(tick("id")).collect()
    @udf("long")
    def twice(x): return 2 * x
    rows = run.spark.range(4).select(twice("id").alias("n")).collect()
    told = [
        os.getppid(), run.attempt, sum(row.n for row in rows), run.spark.conf.get("spark.sql.shuffle.partitions"),
        run.interval.start.isoformat(), run.logical_date == run.interval.start, run.backfill_id,
    ]
    (out / f"told-{run.id}").write_text(repr(told))
"""
LEASE_SECONDS = 15.0
FIRST = datetime(2013, 1, 1, 5, tzinfo=UTC)


class End(NamedTuple):
    """What a host hears of a driver's end. ``begun``: the last run that it was allowed to begin."""

    attempt_id: int
    begun: int | None
    reported: bool
    reason: str


class Recorder:
    """A host that allows everything unless configured otherwise, and records what it receives."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer = producer(settings, "recorder")
        self._wire = ReportWire(lambda: self._producer, settings.topic_prefix, settings.partitions)
        self.allowed = True
        self.accepts = True
        # What it says is left of a lease.
        self.lease_seconds = LEASE_SECONDS
        self._ended: queue.SimpleQueue[End] = queue.SimpleQueue()
        self.over: queue.SimpleQueue[tuple[int, TimedOut]] = queue.SimpleQueue()

    def may_begin(self, launch: LaunchRequest, run_id: int) -> float | None:
        return self.lease_seconds if self.allowed else None

    def may_publish(self, launch: LaunchRequest, run_ids: Sequence[int]) -> bool:
        return self.accepts

    def publish(
        self,
        launch: LaunchRequest,
        report: Report,
        on_delivery: OnDelivery,
        trace: str | None,
        renewed: Callable[[], object],
    ) -> None:
        self._wire.send(report, SOURCE, on_delivery, trace)

    def code(self, sha256: str, *, whole: bool) -> dict[str, str]:
        return code_of(self._settings, sha256, whole)

    def driver_ended(
        self,
        launch: LaunchRequest,
        *,
        reported: bool,
        reason: str,
        exited: bool = True,
        begun: int | None = None,
        unheard: bool = False,
        shared: bool = False,
    ) -> None:
        self._ended.put(End(launch.attempt_id, begun, reported, reason))

    def timed_out(self, launch: LaunchRequest, begun: int, over: TimedOut) -> None:
        self.over.put((begun, over))

    def refused(self, launch: LaunchRequest, reason: str, *, kind: str = NOT_ALLOWED) -> None:
        raise AssertionError(f"the settings forbid attempt {launch.attempt_id}: {reason}")

    def changed(self) -> None:
        """Nobody counts seats here."""

    def close(self) -> None:
        self._wire.close()

    def flush(self) -> None:
        """Wait until all reports that it was given are published: it hears of a driver's end before."""
        assert self._producer.flush(30) == 0

    def ended(self, seconds: float = 90) -> End:
        """The next driver's end. If there is none, the error shows what all drivers printed last."""
        try:
            return self._ended.get(timeout=seconds)
        except queue.Empty:
            logs = (self._settings.home / "logs").rglob("*.log")
            said = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-3000:]}" for path in sorted(logs))
            raise AssertionError(f"no driver ended within {seconds:.0f} s\n{said}") from None


class World:
    """Executors in an installation with Spark, and the reports that their drivers published."""

    # Of runs and of attempts. Spark never forgets the session of an attempt that was shut out.
    ids = itertools.count(int(time.time()) * 1000)

    def __init__(self, installation: Installation, remote: str | None, out: Path) -> None:
        self.installation = installation
        self.settings = installation.settings.model_copy(update={"spark_remote": remote, "driver_slots": 1})
        self.environment = installation.environment() | {"RETROFILL_DRIVER_SLOTS": "1"}
        if remote is not None:
            self.environment["RETROFILL_SPARK_REMOTE"] = remote
        self.out = out
        self.host = Recorder(installation.settings)
        self.executors: list[Launcher] = []

    def executor(self, **more: Any) -> Launcher:
        self.executors.append(build_executors(self.settings.model_copy(update=more), self.host))
        return self.executors[-1]

    def run(self, attempt: int = 1, day: int = 1) -> LaunchedRun:
        """A run of one day of January."""
        start = FIRST + timedelta(days=day - 1)
        return LaunchedRun(next(self.ids), attempt, start, start + timedelta(days=1))

    def launch(
        self,
        code: str = CODE,
        runs: Sequence[LaunchedRun] = (),
        earlier: Sequence[int] = (),
        folder: Path | None = None,
        **conf: Any,
    ) -> LaunchRequest:
        """An attempt at ``runs``, or at a run of its own. ``earlier``: attempts to shut out. ``folder``: of its code."""
        file = (folder or self.out) / "pipeline.py"
        file.write_text(code)
        ((pipeline, location),) = load_pipelines(file)
        return LaunchRequest(
            backfill_id="b",
            attempt_id=next(self.ids),
            mode=AttemptMode.EACH,
            runs=tuple(runs) or (self.run(),),
            pipeline=definition_of(pipeline, location),
            conf={"out": str(self.out), **conf},
            lease_seconds=LEASE_SECONDS,
            earlier=tuple(earlier),
        )

    def again(
        self, lost: LaunchRequest, tries: Mapping[str, int] | None = None, code: str = CODE, **conf: Any
    ) -> LaunchRequest:
        """The next attempt at the runs of a lost one. ``tries``: of tasks, that are used up."""
        runs = [replace(run, attempt=run.attempt + 1, tries=tries or {}) for run in lost.runs]
        return self.launch(code, runs=runs, earlier=[lost.attempt_id], **conf)

    def log(self, launch: LaunchRequest, complete: str | None = None) -> str:
        """What the attempt printed; ``complete``: wait until that is there."""
        source = OnDisk(folder_of(self.settings), launch.attempt_id)
        if complete is not None:
            until(lambda: complete in self.log(launch), f"{complete} is in the log")
        return "\n".join(lines(source, lambda: False))

    def application(self, launch: LaunchRequest) -> dict[str, Any]:
        """The Spark application that the attempt's driver reported."""
        bodies = [e.body for e in self.installation.events(Topic.RUN_REPORTS)]
        (found,) = [b["spark"] for b in bodies if b["attempt_id"] == launch.attempt_id and b["type"] == "RunBegan"]
        return dict(found)

    def bodies(self, launch: LaunchRequest) -> list[dict[str, Any]]:
        """The reports on an attempt."""
        self.host.flush()
        bodies = [e.body for e in self.installation.events(Topic.RUN_REPORTS)]
        return [b for b in bodies if b["attempt_id"] == launch.attempt_id]

    def fields(self, launch: LaunchRequest, run: LaunchedRun | None = None) -> list[str]:
        """The reports on an attempt, or only on one of its runs, without heartbeats: a short one
        sends none.
        """
        mine = self.bodies(launch)
        if run is not None:
            mine = [b for b in mine if (b.get("run_id"), b.get("attempt")) == (run.id, run.attempt)]
        fields = [" ".join(filter(None, (b["type"], b.get("task"), b.get("state")))) for b in mine]
        return [each for each in fields if each != "AttemptHeartbeat"]

    def by_task(self, launch: LaunchRequest) -> list[Any]:
        """What the task of the attempt's only run wrote."""
        (run,) = launch.runs
        written = self.out / f"told-{run.id}"
        assert written.exists(), [e.body for e in self.installation.events(Topic.RUN_REPORTS)]
        found: list[Any] = eval(written.read_text())
        return found

    def begin_slow(self, executor: Launcher, **more: Any) -> LaunchRequest:
        """Start a run whose UDF updates a file forever. Returns once the file exists."""
        launch = self.launch(slow=True, **more)
        for name in ("beat", "pid"):
            (self.out / name).unlink(missing_ok=True)
        executor.launch(launch)
        until((self.out / "beat").exists, "the work on Spark has begun", seconds=120)
        return launch

    def driver(self) -> psutil.Process:
        return psutil.Process(int((self.out / "pid").read_text()))

    def beats(self) -> bool:
        """Whether Spark is still executing the slow run."""
        return time.time() - (self.out / "beat").stat().st_mtime < 1.0


@pytest.fixture
def world(
    installation: Installation, spark_remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    yield from _world(World(installation, spark_remote, tmp_path), monkeypatch)


@pytest.fixture
def submitting(installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world without a Spark Connect server, for drivers that do not need one."""
    yield from _world(World(installation, None, tmp_path), monkeypatch)


def _world(made: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    # For a host in a process of its own.
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    for executor in made.executors:
        executor.close()
    made.host.close()
