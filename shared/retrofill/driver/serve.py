"""Executes launches: session, lease, permission to begin, tasks, publication, report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from structlog.contextvars import bound_contextvars

from retrofill.domain.pipeline import TaskDefinition
from retrofill.driver.context import run_of
from retrofill.driver.conversation import Conversation
from retrofill.driver.errors import error_info
from retrofill.driver.execute import FAILURES, Execution, Result
from retrofill.driver.launch import Launch
from retrofill.driver.lease import Lease
from retrofill.driver.lineage import lineage_of
from retrofill.driver.loss import line_of
from retrofill.driver.process import Ending
from retrofill.driver.publishing import publish_all, publish_staged
from retrofill.driver.report import Reporter, Wire
from retrofill.driver.session import Sessions
from retrofill.driver.staging import Staging
from retrofill.driver.submit import Submits
from retrofill.pipeline import Pipeline
from retrofill.settings import Settings
from retrofill.tracing import fail_span, span
from retrofill.user_code.importing import Code, CodeMoved
from retrofill.user_code.unpacked import unpacked

log = structlog.get_logger(__name__)


class Server:
    """The state of a driver process that is shared by its runs."""

    def __init__(
        self,
        settings: Settings,
        ending: Ending,
        host: Conversation,
        wire: Wire,
        sessions_of: Callable[[Launch], Sessions],
        *,
        once: bool = False,
    ) -> None:
        """``once``: the process exits after the first attempt, so that must release its session."""
        self._once = once
        self._settings = settings
        self._ending = ending
        self._host = host
        self._sessions_of = sessions_of
        self._code = Code(lambda sha256: unpacked(settings, sha256))
        self._lineage = lineage_of(settings)
        self._wire = wire
        self._releasing: threading.Thread | None = None
        ending.silence = wire.silence

    def finish(self) -> None:
        """Wait until the last attempt's resources are released."""
        if self._releasing is not None and self._releasing.ident is not None:
            self._releasing.join()

    def serve_one(self) -> None:
        """Wait for a launch and execute it."""
        launch = Launch.model_validate(self._host.hear("launch"))
        with bound_contextvars(backfill=launch.backfill_id, run=launch.run_id, attempt=launch.attempt):
            self._serve(launch)

    def _serve(self, launch: Launch) -> None:
        submits = Submits(self._settings, launch)
        reporter = Reporter(self._wire, launch)
        work = (
            LeftToPublish(launch)
            if launch.publication
            else Attempt(launch, self._sessions_of(launch), submits, self._code, self._host, lost=self._ending.end)
        )
        self._ending.work = work.interrupt
        lease = Lease(
            reporter.heartbeat,
            launch.lease_seconds or self._settings.lease_seconds,
            expired=lambda: self._ending.end_now("the lease is over"),
            renewed=submits.renew,
        )
        # Not with the lease's heartbeats: a release that hangs must not keep the attempt alive.
        self.finish()
        lease.start()
        failure = work.prepare()
        asked = time.monotonic()
        self._host.say("may_begin", True)
        left = self._host.hear("begin")
        begins = left is not None and lease.begin(asked + left)
        reported = begins and self._work(launch, work, reporter, failure)
        lease.stop()
        if self._once:
            work.release()
        self._releasing = threading.Thread(target=work.release, name="release", daemon=True)
        # A host that retires the driver ends it at once.
        self._ending.work = self.finish
        self._host.say("done", {"reported": reported})
        # Meanwhile the host learns of the end and finds the next launch.
        self._releasing.start()

    def _work(self, launch: Launch, work: Attempt | LeftToPublish, reporter: Reporter, failure: Result | None) -> bool:
        """Run user code and report the result. Returns False if another driver reports it."""
        about: dict[str, str | int] = {
            "pipeline": launch.pipeline.name,
            "backfill": launch.backfill_id,
            "run": launch.run_id,
        }
        about["attempt"] = launch.attempt
        with span("run", launch.trace, **about) as trace:
            reporter.trace = trace
            if not launch.publication:
                self._lineage.started(launch)
            result = failure or work.run(reporter)
            if result is None:
                return False
            if not result.succeeded:
                # What it started must have ended when another attempt may begin.
                work.release()
            if result.error is not None:
                fail_span(f"{result.error.type}: {result.error.message}")
        self._lineage.ended(launch, result.error, succeeded=result.succeeded)
        reporter.ended(result.succeeded, result.error)
        return True


class Attempt:
    """Runs the user code of one attempt, and cleans up after it."""

    def __init__(
        self,
        launch: Launch,
        sessions: Sessions,
        submits: Submits,
        code: Code,
        host: Conversation,
        lost: Callable[[str], object],
    ) -> None:
        self._host = host
        self._released = False
        self._staging = Staging(launch)
        self._lost = lost
        self._launch = launch
        self._sessions = sessions
        self._submits = submits
        self._code = code

    def prepare(self) -> Result | None:
        """Open the session, without running user code. Returns the run's result if that failed."""
        try:
            self._sessions.open()
        except Exception as e:  # noqa: BLE001 - the run reports any error of Spark
            self._leave_if_lost(e)
            return Result(False, error_info(e))
        return None

    def run(self, reporter: Reporter) -> Result | None:
        """Run the tasks and publish their staged output;

        ``None`` if another driver must publish it.
        """
        result = self._run_tasks(reporter)
        if result.succeeded:
            return publish_staged(self._launch, self._staging, reporter, self._host)
        self._staging.discard()
        return result

    def _run_tasks(self, reporter: Reporter) -> Result:
        tasks = self._launch.pipeline.tasks
        try:
            pipeline = self._pipeline()
        except FAILURES as e:
            return Result(False, error_info(e))
        trace = reporter.trace
        return Execution(tasks, lambda task: self._traced(pipeline, task, trace), reporter.task).run()

    def interrupt(self) -> None:
        """End scripts and Spark jobs."""
        self._submits.end()
        self._sessions.interrupt()

    def release(self) -> None:
        """Release the session, once. Errors are only logged: Spark cleans up by itself later."""
        if self._released:
            return
        self._released = True
        try:
            self._sessions.release()
        except Exception as e:  # noqa: BLE001 - the run's end is already reported
            log.warning("session_not_released", error=str(e))

    def _pipeline(self) -> Pipeline | None:
        """The user's pipeline;

        ``None`` if all tasks are scripts. Raises ``CodeMoved`` and what its import raises.
        """
        functions = [task.name for task in self._launch.pipeline.tasks if task.submit is None]
        if not functions:
            return None
        pipeline = self._code.pipeline(self._launch.pipeline.code)
        for name in functions:
            if name not in pipeline.functions:
                raise CodeMoved(f"pipeline {pipeline.name!r} no longer has a task {name!r}: apply it again")
        return pipeline

    def _traced(self, pipeline: Pipeline | None, task: TaskDefinition, parent: str | None) -> object:
        with span(f"task {task.name}", parent, pipeline=self._launch.pipeline.name) as trace:
            return self._body(pipeline, task, trace)

    def _body(self, pipeline: Pipeline | None, task: TaskDefinition, trace: str | None) -> object:
        if pipeline is None or task.submit is not None:
            self._submits.run(self._with_shipped_script(task))
            return None
        try:
            return pipeline.functions[task.name](run_of(self._launch, self._sessions, self._staging, task.name, trace))
        except FAILURES as e:
            self._leave_if_lost(e)
            raise

    def _with_shipped_script(self, task: TaskDefinition) -> TaskDefinition:
        """The task with the path of its script in the unpacked archive, if it was shipped."""
        assert task.submit is not None
        script = self._code.script(self._launch.pipeline.code, task.submit.script)
        return task.model_copy(update={"submit": task.submit.model_copy(update={"script": script})})

    def _leave_if_lost(self, error: BaseException) -> None:
        """End the process if the session is lost: retrying tasks cannot succeed without it.

        The attempt then counts as lost, not failed, and the run gets a new attempt with a new
        session.
        """
        if (loss := self._sessions.lost(error)) is not None:
            self._lost(f"Spark lost the session: {line_of(loss)}")


class LeftToPublish:
    """Publishes the output of an accepted attempt whose driver was lost.

    Needs no session or user code.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def prepare(self) -> None:
        """Nothing to open."""

    def run(self, _: Reporter) -> Result:
        return publish_all(self._launch, self._launch.outputs)

    def interrupt(self) -> None:
        """Nothing runs elsewhere."""

    def release(self) -> None:
        """Nothing to free."""
