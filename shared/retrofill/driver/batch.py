"""Runs the user code of one attempt: piece by piece, in one session."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Callable, ContextManager, Iterator, Mapping

from retrofill.driver.application import WAIT_SECONDS, begin_reading
from retrofill.driver.context import run_of
from retrofill.driver.execute import FAILURES, Execution, Result, TaskTimedOut, TimeLimit
from retrofill.driver.forking import Notes
from retrofill.driver.preparing import Fields
from retrofill.driver.publishing import Publisher
from retrofill.driver.report import Reporter
from retrofill.driver.session import Sessions
from retrofill.driver.sql import run_sql
from retrofill.driver.submit import Submits
from retrofill.log import get_log
from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.restoring import restore
from retrofill.outputs.reviewed import remember
from retrofill.outputs.staging import Staging
from retrofill.outputs.tables.publication import Lost, leave_if_lost
from retrofill.outputs.tables.sweeping import StagedTables
from retrofill.pipeline import Pipeline
from retrofill.protocol.facts import Cost, ErrorInfo, SparkApplication, error_info
from retrofill.protocol.launch import Launch, Piece, Task
from retrofill.sdk.names import timed_out
from retrofill.sdk.texts import BRANCH
from retrofill.spark.clusters import CannotKill
from retrofill.spark.loss import line_of
from retrofill.tracing import span
from retrofill.user_code.loading import Code, CodeMoved

log = get_log(__name__)


def _must_stage(task: Task) -> bool:
    """Whether a review expects something of the task. Of a script, its arguments say so before it is requested."""
    return task.kind == "python" and not task.writes_nothing and not task.sparse


def _not_staged(task: str) -> ErrorInfo:
    return error_info(
        CannotStage(
            f"task {task!r} staged nothing, although a review was asked for: what it wrote may be seen by readers already. Stage "
            "it (run.stage, run.stage_table), or declare the task with writes_nothing=True if it writes nothing"
        )
    )


Stuck = Callable[[Task, int, TaskTimedOut], object]


class Batch:
    """Implements ``serve.Work``. ``lost`` ends the process: Spark lost the session. So does
    ``stuck``: a try of a task timed out, and it cannot be interrupted.
    """

    def __init__(
        self,
        launch: Launch,
        sessions: Sessions,
        submits: Submits,
        code: Code,
        publisher: Publisher,
        notes: Notes,
        lost: Lost,
        stuck: Stuck,
    ) -> None:
        self._launch = launch
        self._staged_tables = StagedTables(launch)
        self._sessions = sessions
        self._submits = submits
        self._code = code
        self._publisher = publisher
        self._notes = notes
        self._lost = lost
        self._stuck = stuck
        self._released = False
        # Of the last piece.
        self.staging: Staging | None = None
        self._cost: Future[Cost | None] | None = None

    def prepare(self) -> Result | None:
        """Open the session, unless only scripts run, which have their own."""
        try:
            if self._launch.needs_session:
                self._sessions.open()
        except Exception as e:  # noqa: BLE001 - the run reports any error of Spark
            self._leave_if_lost(e)
            return Result(False, error_info(e), everywhere=True)
        return None

    def run(self, piece: Piece, reporter: Reporter) -> Result | None:
        """Run the tasks. Their staged output is published while the next piece is under way."""
        staging = self.staging = Staging(self._launch, piece, self._staged_tables)
        result = self._run_tasks(piece, staging, reporter)
        if not result.succeeded or piece == self._launch.pieces[-1]:
            # While the output is published: the end of a run does not wait for it.
            self._cost = begin_reading(self._read_cost)
        if len(self._launch.pieces) == 1:
            reporter.cost_of_run = partial(self._cost_of_each, len(piece.runs))
        if not result.succeeded:
            staging.discard()
            return result
        try:
            outputs = staging.seal()
            bases = self._bases(piece, outputs)
        except (CannotStage, OSError) as e:
            staging.discard()
            return Result(False, error_info(e))
        except Exception as e:  # noqa: BLE001 - of a table, whatever Spark raises
            self._leave_if_lost(e)
            staging.discard()
            return Result(False, error_info(e))
        self._publisher.publish([replace(run, outputs=outputs.get(run.id, ())) for run in piece.runs], bases)
        return None

    def _bases(self, piece: Piece, outputs: Mapping[int, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
        """What a review compares with, if there is one. In the publisher's session, which user code does not change."""
        return remember(self._launch, piece, outputs, self._sessions.publisher) if self._launch.review else {}

    def application(self) -> SparkApplication | None:
        return self._sessions.application()

    def next(self) -> bool:
        """Clear the session for the next run. If that fails, the other runs get another session."""
        try:
            self._sessions.clear()
        except Exception as e:  # noqa: BLE001 - whatever it is, no run may meet what another one left
            self._leave_if_lost(e)
            log.warning("session_not_cleared", error=line_of(e))
            self.release()
            return False
        return True

    def finish(self) -> None:
        """Wait until all staged output is published."""
        self._publisher.finish()

    def cost(self) -> Cost | None:
        """What Spark used in the session. Scripts have Sparks of their own."""
        reading = self._cost or begin_reading(self._read_cost)
        try:
            return reading.result(WAIT_SECONDS)
        except NoAnswer:
            log.info("cost_unknown", error=f"no answer within {WAIT_SECONDS:g} s")
            return None

    def _cost_of_each(self, runs: int) -> Cost | None:
        """The part of each run, if it is known by now."""
        found = None if self._cost is None or not self._cost.done() else self._cost.result()
        return None if found is None else found.shared_by(runs)

    def _read_cost(self) -> Cost | None:
        try:
            return self._sessions.cost()
        except Exception as e:  # noqa: BLE001 - user code may have stopped the session
            log.info("cost_unknown", error=line_of(e))
            return None

    def interrupt(self) -> None:
        """End scripts and Spark jobs."""
        self._submits.end()
        self._sessions.interrupt()

    def release(self) -> None:
        """Release the session, once. Errors are only logged: Spark cleans up by itself later.

        That of the publisher is released by a call after all output is published.
        """
        try:
            if not self._released:
                self._released = True
                if not self._sessions.publishes_apart:
                    self._publisher.finish()
                self._sessions.release()
            if self._publisher.finished:
                self._sessions.release_publisher()
        except Exception as e:  # noqa: BLE001 - the run's end is already reported
            log.warning("session_not_released", error=str(e))

    def _run_tasks(self, piece: Piece, staging: Staging, reporter: Reporter) -> Result:
        first = self._launch.pipeline.tasks[0]
        try:
            # As one that raises, an import that exits is not retried: no task has begun.
            with self._noted(first.name, first.retries + 1, everywhere=True):
                pipeline = self._pipeline()
        except FAILURES as e:
            return Result(False, error_info(e), everywhere=True)
        trace = reporter.trace_of(piece.runs[0])
        past_review: list[str] = []

        def body(task: Task) -> object:
            with span(f"task {task.name}", trace, pipeline=self._launch.pipeline.name) as of_task:
                returned = self._body(pipeline, piece, staging, task, of_task)
            reviewed = self._launch.review and not self._launch.undoes
            if reviewed and _must_stage(task) and not staging.has_staged(task.name):
                past_review.append(task.name)
            return returned

        tasks = self._launch.pipeline.tasks
        if piece.is_range:
            # Its retry is a smaller range, which finds the interval that fails.
            tasks = tuple(replace(task, retries=0) for task in tasks)
        used = {} if piece.is_range else piece.runs[0].tries
        around = partial(self._around, piece)
        result = Execution(tasks, body, reporter.of_tasks(piece), around=around, used=used).run()
        # Not as an error of the task: its retry would write the same again.
        return Result(False, _not_staged(past_review[0])) if result.succeeded and past_review else result

    @contextmanager
    def _around(self, piece: Piece, task: Task, try_number: int) -> Iterator[None]:
        with self._noted(task.name, try_number), self._limit(piece, task, try_number):
            yield

    @contextmanager
    def _noted(self, task: str, try_number: int, *, everywhere: bool = False) -> Iterator[None]:
        """Whatever ends the process in this block is code of the task, ``everywhere`` or in this piece."""
        self._notes.began(task, try_number, everywhere=everywhere)
        try:
            yield
        finally:
            self._notes.ended(task)

    def _limit(self, piece: Piece, task: Task, try_number: int) -> ContextManager[object]:
        """The time limit of a try. A range has the time of all its runs."""
        if task.timeout_seconds is None:
            return nullcontext()
        times = len(piece.runs)
        what = f"task {task.name!r} of run {piece.id}"
        error = TaskTimedOut(timed_out(what, task.timeout_seconds, times, "its timeout"))

        def interrupt() -> None:
            self._submits.end_task(task.name)
            if task.needs_session:
                self._sessions.interrupt_tag(self._launch.tag_of(piece, task.name))

        return TimeLimit(task.timeout_seconds * times, error, interrupt, lambda e: self._stuck(task, try_number, e))

    def _pipeline(self) -> Pipeline | None:
        """The user's pipeline; ``None`` if all tasks are scripts, or the run undoes another.

        Raises ``CodeMoved`` and what its import raises.
        """
        functions = [task.name for task in self._launch.pipeline.tasks if task.submit is None and task.sql is None]
        if self._launch.undoes or not functions:
            return None
        pipeline = self._code.pipeline(self._launch.pipeline.code)
        for name in functions:
            if name not in pipeline.functions:
                raise CodeMoved(f"pipeline {pipeline.name!r} no longer has a task {name!r}: apply it again")
        return pipeline

    def _body(self, pipeline: Pipeline | None, piece: Piece, staging: Staging, task: Task, trace: str | None) -> object:
        staging.begin_try(task.name)
        if task.submit is not None:
            self._run_script(task, piece, staging)
            return None
        try:
            if task.sql is not None:
                fields = Fields(self._launch, piece, staging, task.name)
                run_sql(task.sql, task.name, fields, self._session(piece, task), staging.tables)
                return None
            if pipeline is None:
                restore(self._launch, piece, staging, partial(self._session, piece, task), task.name)
                return None
            # Code may get the session from pyspark.
            if self._launch.needs_session:
                self._session(piece, task)
            return pipeline.functions[task.name](run_of(self._launch, piece, self._sessions, staging, task.name, trace))
        except FAILURES as e:
            self._leave_if_lost(e)
            raise

    def _run_script(self, task: Task, piece: Piece, staging: Staging) -> None:
        assert task.submit is not None
        tables = [table for table in task.submit.tables if not table.redirected]
        fields = Fields(
            self._launch,
            piece,
            staging,
            task.name,
            tables,
            lambda table: staging.tables.lend(task.name, self._session(piece, task), table),
            lambda lent: staging.tables.location(self._session(piece, task), lent),
        )
        # Of what was shipped, that in the unpacked archive.
        place = partial(self._code.script, self._launch.pipeline.code)
        try:
            script = fields.located(task.submit, place)
            for table in task.submit.tables:
                if table.redirected:
                    own = replace(table, name=fields.fill([table.name])[0])
                    branch = staging.tables.redirect(task.name, self._session(piece, task), own)
                    script = replace(script, conf={**script.conf, BRANCH: branch})
            self._submits.run(replace(task, submit=script), fields)
            if task.needs_session:
                staging.tables.take_back(task.name, self._session(piece, task))
        except CannotKill as e:
            # A retry of the task would run beside it. The next attempt waits for its end.
            self._lost(f"the application of task {task.name!r} may still run: {e}", False)
            raise
        except FAILURES as e:
            if task.needs_session:
                self._leave_if_lost(e)
            raise

    def _session(self, piece: Piece, task: Task) -> Any:
        return self._sessions.use(self._launch.tag_of(piece, task.name))

    def _leave_if_lost(self, error: BaseException) -> None:
        """The attempt then counts as lost, not failed, and the run gets a new attempt with a new session."""
        leave_if_lost(error, self._sessions, self._lost)
