"""``run``, the argument of every task."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import structlog
from pydantic import JsonValue

from retrofill.driver.launch import Launch, LaunchedRun
from retrofill.driver.session import Sessions
from retrofill.driver.staging import Staging


@dataclass(frozen=True)
class Interval:
    """The data interval ``[start, end)``, in the pipeline's time zone."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Run:
    """One attempt of one run, as seen by one of its tasks."""

    id: int
    backfill_id: str
    attempt: int
    interval: Interval
    conf: dict[str, JsonValue]
    log: Any
    _sessions: Sessions
    _staging: Staging
    _task: str
    traceparent: str | None = None
    """The W3C trace context of this task, for calls to other systems."""

    @property
    def logical_date(self) -> datetime:
        """The start of the data interval."""
        return self.interval.start

    @property
    def spark(self) -> Any:
        """The run's Spark session. Get it here in each thread, so the thread's jobs are tagged."""
        return self._sessions.use()

    def stage(self, path: str) -> str:
        """A directory to write ``path`` to. It is published atomically after acceptance.

        Raises ``CannotStage`` if ``path`` does not support this or conflicts with another task's
        output.
        """
        return self._staging.stage(self._task, path)

    def staged(self, path: str) -> str:
        """The directory where an earlier task of this run staged ``path``.

        Raises ``CannotStage`` if none did.
        """
        return self._staging.staged(path)


def interval_of(launch: Launch, run: LaunchedRun) -> Interval:
    """The run's interval in the pipeline's time zone."""
    zone = ZoneInfo(launch.pipeline.timezone)
    return Interval(run.interval_start.astimezone(zone), run.interval_end.astimezone(zone))


def run_of(
    launch: Launch, run: LaunchedRun, sessions: Sessions, staging: Staging, task: str, trace: str | None = None
) -> Run:
    """The run for ``task``. Each task gets its own copy of ``conf``."""
    return Run(
        id=run.id,
        backfill_id=launch.backfill_id,
        attempt=run.attempt,
        interval=interval_of(launch, run),
        conf=launch.model_copy(deep=True).conf,
        log=task_log(launch, run, task),
        _sessions=sessions,
        _staging=staging,
        _task=task,
        traceparent=trace,
    )


def task_log(launch: Launch, run: LaunchedRun, task: str) -> Any:
    """A log bound to run and task.

    Supports ``log.info("read", rows=3)`` and ``log.info("read %s", 3)``.
    """
    log = structlog.wrap_logger(
        logging.getLogger("retrofill.task"),
        processors=[structlog.stdlib.PositionalArgumentsFormatter(), *structlog.get_config()["processors"]],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return log.bind(
        pipeline=launch.pipeline.name, backfill=launch.backfill_id, run=run.id, attempt=run.attempt, task=task
    )
