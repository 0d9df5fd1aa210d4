"""``run``: what every task is called with."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import structlog
from pydantic import JsonValue

from retrofill.driver.launch import Launch
from retrofill.driver.session import Sessions
from retrofill.driver.staging import Staging


@dataclass(frozen=True)
class Interval:
    """The data interval ``[start, end)``, in the pipeline's time zone."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Run:
    """One attempt of one run, as one of its tasks sees it."""

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
    """The W3C trace context of this task, to pass on to what it calls."""

    @property
    def logical_date(self) -> datetime:
        """The start of the data interval."""
        return self.interval.start

    @property
    def spark(self) -> Any:
        """The run's Spark session; what a thread does with it is tagged once the thread asked for it here."""
        return self._sessions.use()

    def stage(self, path: str) -> str:
        """Where to write the folder ``path``: it appears there, whole, only once this attempt has been accepted.

        Raises ``CannotStage`` where renames do not do what that takes, or another task of the run stages the same.
        """
        return self._staging.stage(self._task, path)

    def staged(self, path: str) -> str:
        """Where an earlier task of this run staged ``path``, to read it. Raises ``CannotStage`` where none did."""
        return self._staging.staged(path)


def interval_of(launch: Launch) -> Interval:
    """The launch's interval in the pipeline's time zone."""
    zone = ZoneInfo(launch.pipeline.timezone)
    return Interval(launch.interval_start.astimezone(zone), launch.interval_end.astimezone(zone))


def run_of(launch: Launch, sessions: Sessions, staging: Staging, task: str, trace: str | None = None) -> Run:
    """The run for ``task``. Each task has a ``conf`` of its own, so that one's changes are not another's surprise."""
    return Run(
        id=launch.run_id,
        backfill_id=launch.backfill_id,
        attempt=launch.attempt,
        interval=interval_of(launch),
        conf=launch.model_copy(deep=True).conf,
        log=task_log(launch, task),
        _sessions=sessions,
        _staging=staging,
        _task=task,
        traceparent=trace,
    )


def task_log(launch: Launch, task: str) -> Any:
    """A log whose lines name run and task; takes ``log.info("read", rows=3)`` and ``log.info("read %s", 3)`` alike."""
    log = structlog.wrap_logger(
        logging.getLogger("retrofill.task"),
        processors=[structlog.stdlib.PositionalArgumentsFormatter(), *structlog.get_config()["processors"]],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return log.bind(
        pipeline=launch.pipeline.name, backfill=launch.backfill_id, run=launch.run_id, attempt=launch.attempt, task=task
    )
