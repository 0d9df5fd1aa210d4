"""This replica as a host: answers drivers, reports those that exited, ends obsolete ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.states import AttemptMode, TaskState
from retrofill.user_code.loading import CodeUnavailable
from retrofill_core.bus import metrics
from retrofill_core.contract.runs import (
    SPARK_LOST,
    AttemptEnded,
    AttemptHeartbeat,
    ErrorInfo,
    Report,
    RunPublicationPutOff,
    RunReported,
    TaskReported,
)
from retrofill_core.contract.topics import RUN_STARTER
from retrofill_core.store import attempts
from retrofill_core.store.engine import reading
from run_starter.executors import NOT_ALLOWED, Key, Launcher, LaunchRequest, OnDelivery, TimedOut
from run_starter.executors.answers import SOURCE
from run_starter.host.lineage import Lineage, NoLineage
from run_starter.host.report_wire import Heartbeats, Renewed, ReportWire

log = get_log(__name__)
POLL_SECONDS = 1.0
# By hash and whether the whole archive is wanted: see ``executors.Host.code``.
CodeOf = Callable[[str, bool], dict[str, str]]


class DriverHost:
    """Implements ``executors.Host``."""

    def __init__(self, engine: Engine, reports: ReportWire, code: CodeOf, lineage: Lineage | None = None) -> None:
        """``code``: the folder with the archive of this hash, which may raise ``CodeUnavailable``."""
        self._engine = engine
        self._reports = reports
        self._code = code
        self._lineage = lineage or NoLineage()
        self.heartbeats = Heartbeats()
        # Set when the number of usable drivers may have changed.
        self.drivers_changed = threading.Event()
        self._draining = self._closing = False
        self._changed = threading.Condition()
        self._changes = 0

    def may_begin(self, launch: LaunchRequest, run_id: int) -> float | None:
        """Read from Postgres now, or as soon as it answers: the driver's lease limits that.

        If the lease seems over, wait until the shard's owner renews it or ends the attempt.
        """
        while not self._draining:
            seen = self._changes
            try:
                with reading(self._engine) as conn:
                    left = attempts.lease_left(conn, launch.attempt_id, run_id)
            except SQLAlchemyError as e:
                log.warning("may_not_begin_yet", run=run_id, attempt=launch.attempt_id, error=first_line(e))
                left = 0.0
            if left is None:
                return None
            if left > 0:
                # More than a whole lease is left only by a clock that was set back.
                return min(left, launch.lease_seconds)
            self._wait_for_change(seen)
        return None

    def may_publish(self, launch: LaunchRequest, run_ids: Sequence[int]) -> bool:
        """Wait until all staged output is accepted, or some refused; the driver's own lease limits this."""
        while not self._closing:
            # Before the read, so no later change is missed.
            seen = self._changes
            try:
                with reading(self._engine) as conn:
                    accepted = attempts.accepted(conn, launch.attempt_id, run_ids)
            except SQLAlchemyError as e:
                log.warning("acceptance_unknown", attempt=launch.attempt_id, error=first_line(e))
                accepted = None
            if accepted is not None:
                return accepted
            self._wait_for_change(seen)
        return False

    def _wait_for_change(self, seen: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen, POLL_SECONDS)

    def wake(self) -> None:
        """A run may have changed."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

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
        """Report the end of a driver that did not do so itself."""
        if not reported:
            log.warning(
                "driver_gone" if exited else "driver_out_of_sight",
                backfill=launch.backfill_id,
                attempt=launch.attempt_id,
                reason=reason,
            )
            if exited:
                error = ErrorInfo(type=SPARK_LOST if shared else "DriverLost", message=reason[:4000])
                # What began nothing does not count, nor does what worked.
                spared = self._closing or begun is None or unheard
                how: Literal["released", "lost"] = "released" if spared else "lost"
                self.report(AttemptEnded(**launch.about, state=how, error=error, begun=begun, shared=shared))
                if shared:
                    metrics.SPARK_LOST.labels(launch.pipeline.pool).inc()
        self.changed()

    def timed_out(self, launch: LaunchRequest, begun: int, over: TimedOut) -> None:
        """Report the end of a task that ended its driver, and what follows.

        If it has tries left, the run is queued again, with a record of this one. A range is split, unless each of its
        runs would fail alike.
        The other runs of the attempt are queued again.
        """
        log.warning("task_ended_driver", backfill=launch.backfill_id, attempt=launch.attempt_id, task=over.task)
        whole = launch.mode == AttemptMode.RANGE
        retries = next((task.retries for task in launch.pipeline.tasks if task.name == over.task), 0)
        again = not whole and over.try_number <= retries
        how: Literal["failed", "released"] = "failed" if whole else "released"
        state = TaskState.RETRYING if again else TaskState.FAILED
        for run in launch.runs:
            if whole or run.id == begun:
                error = over.error.of_run(run.id, launch.runs[0].id if whole else begun)
                about = {**launch.about, "run_id": run.id, "attempt": run.attempt, "error": error}
                self.report(TaskReported(**about, task=over.task, try_number=over.try_number, state=state))
                if over.everywhere or not (whole or again):
                    self.report(RunReported(**about, state="failed"))
        self.report(AttemptEnded(**launch.about, state=how, error=over.error, begun=begun))
        self.changed()

    def refused(self, launch: LaunchRequest, reason: str, *, kind: str = NOT_ALLOWED) -> None:
        """Report runs that cannot be executed as failed; no driver was given them. Accepted ones wait for another publisher."""
        log.warning("attempt_refused", backfill=launch.backfill_id, attempt=launch.attempt_id, reason=reason)
        error = ErrorInfo(type=kind, message=reason[:4000])
        publishes = launch.mode == AttemptMode.PUBLISH
        for run in launch.runs:
            mine = error.of_run(run.id, launch.runs[0].id)
            about = {**launch.about, "run_id": run.id, "attempt": run.attempt, "error": mine}
            put_off = publishes and RunPublicationPutOff(**about, publication=run.publication)
            self.report(put_off or RunReported(**about, state="failed"))
        ends: dict[str, Any] = {"state": "released", "error": error} if publishes else {"state": "done"}
        self.report(AttemptEnded(**launch.about, **ends, stays=True))
        self.changed()

    def changed(self) -> None:
        self.drivers_changed.set()
        self.wake()

    def report(self, report: Report) -> None:
        """Send a report on an attempt of this host."""

        def delivered(why: str | None) -> None:
            if why is not None:
                # The end of the lease has the same effect, a little later.
                log.warning("end_not_reported", backfill=report.backfill_id, attempt=report.attempt_id, error=why)

        on_delivery: OnDelivery = delivered
        if isinstance(report, AttemptHeartbeat):
            # Of a launch that waits for its driver, which has nothing to end.
            on_delivery = self.heartbeats.sent(report.attempt_id, delivered, lambda: None)
        self._reports.send(report, RUN_STARTER.name, on_delivery)

    def publish(
        self, launch: LaunchRequest, report: Report, on_delivery: OnDelivery, trace: str | None, renewed: Renewed
    ) -> None:
        """Publish a driver's report, and what it says to OpenLineage."""
        if isinstance(report, AttemptHeartbeat):
            on_delivery = self.heartbeats.sent(launch.key, on_delivery, renewed)
        self._reports.send(report, SOURCE, on_delivery, trace)
        self._lineage.reported(launch, report)

    def code(self, sha256: str, *, whole: bool) -> dict[str, str]:
        """See ``executors.Host.code``."""
        try:
            return self._code(sha256, whole)
        except CodeUnavailable as e:
            return {"error": str(e)}

    def drain(self) -> None:
        """Let nothing begin any more."""
        self._draining = True
        self.wake()

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until that holds, for so many seconds at most. Asked when a driver ends."""
        until = time.monotonic() + seconds
        while not condition() and (left := until - time.monotonic()) > 0:
            with self._changed:
                self._changed.wait_for(condition, min(left, POLL_SECONDS))

    def closing(self) -> None:
        """Report lost drivers as released from now on, so the losses do not count."""
        self._draining = self._closing = True
        self.wake()

    def close(self) -> None:
        """Flush the reports."""
        self._reports.close()


class Watch(threading.Thread):
    """Ends hosted drivers whose attempt is cancelled or no longer live, whoever owns the shard.

    Renews the leases of the others while Kafka is away.
    """

    def __init__(
        self, engine: Engine, executor: Launcher, heartbeats: Heartbeats, own: Callable[[], Collection[int]]
    ) -> None:
        """``own``: the ids of this host."""
        super().__init__(name="watch", daemon=True)
        self._engine = engine
        self._executor = executor
        self._heartbeats = heartbeats
        self._own = own
        self._woken = threading.Event()
        self._stopping = threading.Event()

    def wake(self) -> None:
        """A run may have changed, or one was launched."""
        self._woken.set()

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def run(self) -> None:
        """Check when woken, and every second while drivers are hosted."""
        while not self._stopping.is_set():
            self._woken.wait(POLL_SECONDS if self._executor.hosted() else None)
            self._woken.clear()
            try:
                self._heartbeats.renew(self._engine, self._own())
                self._check()
            except SQLAlchemyError as e:
                # During a Postgres outage, Kafka alone keeps leases.
                log.warning("watch_waits", error=first_line(e))
            except Exception:
                # Without this thread, no cancel and no time-out would end a driver any more.
                log.exception("watch_failed")

    def _check(self) -> None:
        if hosted := self._executor.hosted():
            with reading(self._engine) as conn:
                over = attempts.to_be_ended(conn, hosted)
            for key in over:
                self._end(key)

    def _end(self, key: Key) -> None:
        log.info("ending_driver", attempt=key)
        try:
            self._executor.end(key)
        except Exception:
            # The next check tries it again. The other drivers must end, too.
            log.exception("driver_not_ended", attempt=key)
