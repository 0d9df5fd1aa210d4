"""A run-starter whose drivers are threads that report success at once. Everything else is real.

Run it as ``python -m tests.support.instant_starter``; it reads the service's settings. Further
variables: ``INSTANT_SECONDS`` is the duration of a run. Logical dates in ``INSTANT_FAIL`` (ISO
dates, comma-separated) fail. ``INSTANT_LOG`` is a file that gets one JSON line for each run's work:
run, attempt, interval, and when it began and ended (machine-wide monotonic clock). With
``INSTANT_OUT``, each run stages a folder ``day=DATE`` there, containing a file that names the run.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from retrofill.bus.clients import producer
from retrofill.bus.envelope import headers_of, wire_headers
from retrofill.bus.service import Context, run_service
from retrofill.contract.runs import ErrorInfo, Report, RunHeartbeat, RunReported, RunStaged, TaskReported
from retrofill.contract.topics import RUN_STARTER, Topic
from retrofill.driver.execute import Result
from retrofill.driver.launch import Launch
from retrofill.driver.publishing import publish_all, publish_staged
from retrofill.driver.staging import Staging
from retrofill.settings import Settings
from run_starter.executors import Host, Key, LaunchRequest
from run_starter.handler import CHANNELS, StarterHandler


class InstantExecutor:
    """Threads that follow the driver protocol but do no work."""

    def __init__(self, settings: Settings, seconds: float, failing: frozenset[str]) -> None:
        self._slots = settings.driver_slots
        self._topic = f"{settings.topic_prefix}{Topic.RUN_REPORTS}"
        self._producer: Producer = producer(settings, "instant-driver")
        self._seconds = seconds
        self._failing = failing
        self._threads = ThreadPoolExecutor(self._slots)
        path = os.environ.get("INSTANT_LOG")
        self._log = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._hosted: dict[Key, threading.Event] = {}
        self._lock = threading.Lock()
        self._out = os.environ.get("INSTANT_OUT")
        self.host: Host | None = None

    def free(self) -> int:
        return self._slots - len(self.hosted())

    def ending(self, keys: Collection[Key]) -> None:
        """A thread is free only when it has returned."""

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

    def _run(self, launch: LaunchRequest, ended: threading.Event) -> None:
        fields: dict[str, Any] = {"backfill_id": launch.backfill_id, "run_id": launch.run_id, "attempt": launch.attempt}
        fields["publication"] = launch.publication
        assert self.host is not None
        reported = False
        begins = self.host.may_begin(launch) is not None
        if begins:
            self._say(RunHeartbeat(**fields))
        if begins and launch.publication:
            self._report(launch, publish_all(driver_launch(launch), launch.outputs))
            reported = True
        elif begins and self._work(launch, ended):
            failed = launch.interval_start.date().isoformat() in self._failing
            error = ErrorInfo(type="ValueError", message="this day fails") if failed else None
            for task in launch.pipeline.tasks:
                self._say(TaskReported(**fields, task=task.name, state="running"))
                self._say(
                    TaskReported(**fields, task=task.name, state="failed" if failed else "succeeded", error=error)
                )
            result = self._publish(launch) if self._out is not None and not failed else Result(not failed, error)
            if result is not None:
                self._report(launch, result)
            reported = result is not None
        with self._lock:
            del self._hosted[launch.key]
        self.host.driver_ended(launch, reported=reported, reason="ended")

    def _work(self, launch: LaunchRequest, ended: threading.Event) -> bool:
        """Simulate the run's work. Returns whether it finished without being ended."""
        began = time.monotonic()
        done = not ended.wait(self._seconds)
        if self._log is not None:
            line = {
                "run": launch.run_id,
                "attempt": launch.attempt,
                "interval": launch.interval_start.isoformat(),
                "began": began,
                "ended": time.monotonic(),
            }
            # One O_APPEND write, so lines of several processes do not mix.
            os.write(self._log, json.dumps(line).encode() + b"\n")
        return done

    def _publish(self, launch: LaunchRequest) -> Result | None:
        """Write, stage and publish the day's folder as a driver does."""
        given = driver_launch(launch)
        staging = Staging(given)
        folder = Path(staging.stage("only", f"{self._out}/day={launch.interval_start.date().isoformat()}"))
        folder.mkdir()
        (folder / "part-0").write_text(f"run {launch.run_id}")
        talk = Talk(self, launch)
        return publish_staged(given, staging, talk, talk)  # type: ignore[arg-type]  # implements what is needed of both

    def _report(self, launch: LaunchRequest, result: Result) -> None:
        given = driver_launch(launch)
        state = "succeeded" if result.succeeded else "failed"
        self._say(RunReported(**given.about, state=state, error=result.error))

    def _say(self, report: Report) -> None:
        self._producer.produce(
            self._topic,
            key=report.backfill_id.encode(),
            value=report.encode(),
            headers=wire_headers(headers_of(report, "driver")),
        )
        self._producer.flush()


class Talk:
    """Replaces a driver's reporter and its pipe to the host, in one process."""

    def __init__(self, executor: InstantExecutor, launch: LaunchRequest) -> None:
        self._executor = executor
        self._launch = launch

    def staged(self, outputs: tuple[str, ...]) -> None:
        self._executor._say(RunStaged(**driver_launch(self._launch).about, outputs=outputs))

    def say(self, kind: str, _: object) -> None:
        assert kind == "may_publish"

    def hear(self, kind: str) -> bool:
        assert kind == "publish"
        assert self._executor.host is not None
        return self._executor.host.may_publish(self._launch)


def driver_launch(launch: LaunchRequest) -> Launch:
    """The launch as a driver process receives it."""
    return Launch.model_validate(launch.as_json())


def make(context: Context) -> StarterHandler:
    """The real handler with instant drivers."""
    failing = frozenset(os.environ.get("INSTANT_FAIL", "").split(","))
    executor = InstantExecutor(context.settings, float(os.environ.get("INSTANT_SECONDS", "0")), failing)
    handler = StarterHandler(context, executor)
    executor.host = handler.host
    return handler


if __name__ == "__main__":
    sys.exit(run_service(RUN_STARTER, make, CHANNELS))
