"""``run``, the argument of every task."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Mapping

from retrofill.driver.session import Sessions
from retrofill.log import TASKS, Log, get_log
from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Interval, Launch, Piece, interval_of


@dataclass(frozen=True)
class Run:
    """One execution of one run, or of a range of runs, as seen by one of its tasks.

    Of a range, ``id`` and ``attempt`` are the first run's, and ``interval`` covers all
    ``intervals``.
    """

    id: int
    backfill_id: str
    attempt: int
    interval: Interval
    intervals: tuple[Interval, ...]
    conf: dict[str, Any]
    log: Log
    _sessions: Sessions
    _staging: Staging
    _task: str
    _tag: str
    traceparent: str | None = None
    """The W3C trace context of this task, for calls to other systems."""

    @property
    def logical_date(self) -> datetime:
        """The start of the data interval."""
        return self.interval.start

    @property
    def spark(self) -> Any:
        """The run's Spark session. Get it here in each thread, so the thread's jobs are tagged."""
        return self._sessions.use(self._tag)

    def stage(self, path: str, interval: Interval | None = None) -> str:
        """A directory to write ``path`` to. It is published atomically after acceptance.

        ``interval``: one of ``intervals``, to which the output belongs; required if there are
        several. Raises ``CannotStage`` if ``path`` does not support this or conflicts with another
        task's output.
        """
        return self._staging.stage(self._task, path, self._number(interval))

    def stage_partitions(self, path: str, partition: str) -> str:
        """A directory to write one partition of ``path`` per interval to, in one Spark job.

        ``partition`` names an interval's directory, like ``day={interval.start:%Y-%m-%d}``. Each is
        published like an output of its own. Raises ``CannotStage``.
        """
        try:
            names = [partition.format(interval=each) for each in self.intervals]
        except (AttributeError, IndexError, KeyError, ValueError) as e:
            raise CannotStage(
                f"the partition {partition!r} cannot be formatted ({e}): use {{interval.start:…}} or {{interval.end:…}}"
            ) from e
        return self._staging.stage_partitions(self._task, path, names)

    def _number(self, interval: Interval | None) -> int:
        """The number of one of ``intervals``."""
        if interval is None and len(self.intervals) > 1:
            raise CannotStage(
                f"this run has {len(self.intervals)} intervals: call run.stage(path, interval) for each of run.intervals, "
                "or run.stage_partitions"
            )
        if interval is None:
            return 0
        # In UTC: two that begin at the same hour of the clock, which occurs twice, are equal.
        wanted = interval.start.astimezone(timezone.utc)
        for number, each in enumerate(self.intervals):
            if each == interval and each.start.astimezone(timezone.utc) == wanted:
                return number
        raise CannotStage(f"{interval} is not one of run.intervals")

    def staged(self, path: str) -> str:
        """The directory where an earlier task of this run staged ``path``.

        Raises ``CannotStage`` if none did.
        """
        return self._staging.staged(path)

    def stage_table(self, rows: Any, table: str, column: str | Mapping[str, str | None], zone: str = "") -> None:
        """Write a DataFrame that replaces the rows of the interval in a Delta, Iceberg or partitioned Hive table.

        ``table``: its name in Spark's SQL. ``column``: of type date, timestamp or string (as
        2013-01-31), tells to which interval a row belongs; for other strings, integers, or several
        columns, their formats: ``{"dt": "%Y%m%d", "hour": "%H"}`` (``None`` for a date). ``zone``: the
        time zone of its dates and formats, if it is not the pipeline's. The rows are written now,
        where no reader of the table sees them, and replace the old ones in one commit (of Hive,
        one change of each partition) after acceptance. An interval without rows becomes empty. Raises ``CannotStage``.
        """
        self._staging.tables.stage(self._task, self.spark, rows, table, column, zone)

    def staged_table(self, table: str) -> Any:
        """A DataFrame of the rows that an earlier task of this run staged for ``table``.

        Raises ``CannotStage`` if none did.
        """
        return self._staging.tables.staged(self.spark, table)


def run_of(
    launch: Launch, piece: Piece, sessions: Sessions, staging: Staging, task: str, trace: str | None = None
) -> Run:
    """The run for ``task``. Each task gets its own copy of ``conf``."""
    return Run(
        id=piece.id,
        backfill_id=launch.backfill_id,
        attempt=piece.attempt,
        interval=interval_of(launch, piece),
        intervals=tuple(interval_of(launch, run) for run in piece.runs),
        conf=dict(deepcopy(launch.conf)),
        log=task_log(launch, piece, task),
        _sessions=sessions,
        _staging=staging,
        _task=task,
        _tag=launch.tag_of(piece, task),
        traceparent=trace,
    )


def task_log(launch: Launch, run: Piece, task: str) -> Log:
    """A log bound to run and task."""
    return get_log(TASKS).bind(
        pipeline=launch.pipeline.name, backfill=launch.backfill_id, run=run.id, attempt=run.attempt, task=task
    )
