"""A run-starter whose drivers do nothing, so that only orchestration is measured.

Run as ``python -m benchmarks.support.starter``; it reads the same settings as the service. One
thread acts for all drivers. Each follows the real protocol: the question whether the attempt may
begin, then for each run the reports of its begin, tasks and end, and at last that of the attempt's
end. It is too short for a heartbeat. The thread asks and flushes once for all drivers that were
launched meanwhile. ``BENCH_PROFILE`` names a file for a profile of the worker thread.
"""

from __future__ import annotations

import cProfile
import os
import queue
import sys
import threading

from sqlalchemy import Engine

from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.bus.clients import producer
from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.bus.service import Context, run_service
from retrofill_core.contract.runs import AttemptEnded, Report, RunBegan, RunReported, TaskReported
from retrofill_core.contract.topics import RUN_STARTER, Topic
from retrofill_core.settings import Settings
from retrofill_core.store import attempts
from run_starter.executors import Condition, Host, Key, LaunchRequest
from run_starter.handler import CHANNELS, StarterHandler


class IdleDrivers(threading.Thread):
    """Drivers whose task does nothing."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        super().__init__(name="idle-drivers", daemon=True)
        self._slots = settings.driver_slots
        self._topic = f"{settings.topic_prefix}{Topic.RUN_REPORTS}"
        self._producer = producer(settings, "idle-drivers", **{"linger.ms": 2})
        self._engine = engine
        self._launched: queue.SimpleQueue[LaunchRequest | None] = queue.SimpleQueue()
        self._hosted: set[Key] = set()
        self._lock = threading.Lock()
        self.host: Host | None = None

    def condition(self) -> Condition:
        return Condition(self._slots)

    def waiting(self) -> list[LaunchRequest]:
        """None for long: the thread executes all in one pass."""
        return []

    def hosted(self) -> set[Key]:
        with self._lock:
            return set(self._hosted)

    def launch(self, launch: LaunchRequest) -> None:
        with self._lock:
            self._hosted.add(launch.key)
        self._launched.put(launch)

    def end(self, key: Key) -> None:
        """No-op: attempts end by themselves."""

    def close(self) -> None:
        self._launched.put(None)
        self.join()

    def run(self) -> None:
        """Report for all drivers launched since the last pass."""
        while True:
            launches = [self._launched.get()]
            while not self._launched.empty():
                launches.append(self._launched.get())
            if None in launches:
                return
            self._execute([launch for launch in launches if launch is not None])

    def _execute(self, launches: list[LaunchRequest]) -> None:
        assert self.host is not None
        with self._engine.connect() as conn:
            over = set(attempts.to_be_ended(conn, [launch.key for launch in launches]))
        for launch in launches:
            if launch.key not in over:
                self._say_all(launch)
        assert self._producer.flush(30) == 0
        with self._lock:
            self._hosted -= {launch.key for launch in launches}
        for launch in launches:
            self.host.driver_ended(launch, reported=launch.key not in over, reason="ended")

    def _say_all(self, launch: LaunchRequest) -> None:
        for run in launch.runs:
            fields = {**launch.about, "run_id": run.id, "attempt": run.attempt}
            self._produce(RunBegan(**fields))
            for task in launch.pipeline.tasks:
                self._produce(TaskReported(**fields, task=task.name, state="running"))
                self._produce(TaskReported(**fields, task=task.name, state="succeeded"))
            self._produce(RunReported(**fields, state="succeeded"))
        self._produce(AttemptEnded(**launch.about, state="done", stays=True))

    def _produce(self, report: Report) -> None:
        self._producer.produce(
            self._topic,
            key=report.backfill_id.encode(),
            value=report.encode(),
            headers=wire_headers(headers_of(report, "driver")),
        )


def make(context: Context) -> StarterHandler:
    """The real handler with idle drivers."""
    drivers = IdleDrivers(context.settings, context.engine)
    handler = StarterHandler(context, {DEFAULT_POOL: drivers})
    drivers.host = handler.host
    drivers.start()
    return handler


def main() -> int:
    """Run the service, with a profile if requested."""
    path = os.environ.get("BENCH_PROFILE")
    if path is None:
        return run_service(RUN_STARTER, make, CHANNELS)
    profile = cProfile.Profile()
    try:
        return profile.runcall(run_service, RUN_STARTER, make, CHANNELS)
    finally:
        profile.dump_stats(path)


if __name__ == "__main__":
    sys.exit(main())
