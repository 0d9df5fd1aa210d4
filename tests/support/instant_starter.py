"""A run-starter whose drivers are threads that report success at once: everything real but Spark.

Run as ``python -m tests.support.instant_starter``; it reads the same settings as the service. ``INSTANT_SECONDS`` is how
long a run takes, logical dates in ``INSTANT_FAIL`` (ISO dates, comma separated) fail, and ``INSTANT_LOG`` is a file that
gets a line of JSON for each run's work: run, attempt, interval, and when it began and ended (monotonic, of the machine).
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from retrofill.bus.clients import producer
from retrofill.bus.envelope import headers_of, wire_headers
from retrofill.bus.service import Context, run_service
from retrofill.bus.topics import RUN_STARTER, Topic
from retrofill.messages.runs import ErrorInfo, Report, RunHeartbeat, RunReported, TaskReported
from retrofill.settings import Settings
from run_starter.executors import Host, Launch
from run_starter.handler import CHANNELS, StarterHandler
from run_starter.hosting import DriverHost


class InstantExecutor:
    """Threads that do what a driver's protocol asks, around no work."""

    def __init__(self, settings: Settings, seconds: float, failing: frozenset[str]) -> None:
        self._slots = settings.driver_slots
        self._topic = f"{settings.topic_prefix}{Topic.RUN_REPORTS}"
        self._producer: Producer = producer(settings, "instant-driver")
        self._seconds = seconds
        self._failing = failing
        self._threads = ThreadPoolExecutor(self._slots)
        path = os.environ.get("INSTANT_LOG")
        self._log = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._hosted: dict[tuple[int, int], threading.Event] = {}
        self._lock = threading.Lock()
        self.host: Host | None = None

    def free(self) -> int:
        return self._slots - len(self.hosted())

    def hosted(self) -> set[tuple[int, int]]:
        with self._lock:
            return set(self._hosted)

    def launch(self, launch: Launch) -> None:
        ended = threading.Event()
        with self._lock:
            self._hosted[launch.run_id, launch.attempt] = ended
        self._threads.submit(self._run, launch, ended)

    def end(self, run_id: int, attempt: int) -> None:
        with self._lock:
            if (run_id, attempt) in self._hosted:
                self._hosted[run_id, attempt].set()

    def close(self) -> None:
        with self._lock:
            for ended in self._hosted.values():
                ended.set()
        self._threads.shutdown(wait=True)

    def _run(self, launch: Launch, ended: threading.Event) -> None:
        told = {"backfill_id": launch.backfill_id, "run_id": launch.run_id, "attempt": launch.attempt}
        self._say(RunHeartbeat(**told))
        assert self.host is not None
        reported = False
        if self.host.may_begin(launch.run_id, launch.attempt) and self._work(launch, ended):
            failed = launch.interval_start.date().isoformat() in self._failing
            error = ErrorInfo(type="ValueError", message="this day fails") if failed else None
            for task in launch.pipeline.tasks:
                self._say(TaskReported(**told, task=task.name, state="running"))
                self._say(TaskReported(**told, task=task.name, state="failed" if failed else "succeeded", error=error))
            self._say(RunReported(**told, state="failed" if failed else "succeeded", error=error))
            reported = True
        with self._lock:
            del self._hosted[launch.run_id, launch.attempt]
        self.host.driver_ended(launch, reported=reported, reason="ended")

    def _work(self, launch: Launch, ended: threading.Event) -> bool:
        """What a run does; whether it came to its end."""
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
            # One write to a file that is appended to: lines of several processes do not mix.
            os.write(self._log, json.dumps(line).encode() + b"\n")
        return done

    def _say(self, report: Report) -> None:
        self._producer.produce(
            self._topic,
            key=report.backfill_id.encode(),
            value=report.encode(),
            headers=wire_headers(headers_of(report, "driver")),
        )
        self._producer.flush()


def make(context: Context) -> StarterHandler:
    """The real handler around instant drivers."""
    failing = frozenset(os.environ.get("INSTANT_FAIL", "").split(","))
    executor = InstantExecutor(context.settings, float(os.environ.get("INSTANT_SECONDS", "0")), failing)
    handler = StarterHandler(context, executor)
    executor.host = DriverHost(
        context.engine,
        producer(context.settings, f"{context.instance}-instant"),
        context.settings.topic_prefix,
        freed=lambda: context.notified("driver_free", ""),
    )
    return handler


if __name__ == "__main__":
    sys.exit(run_service(RUN_STARTER, make, CHANNELS))
