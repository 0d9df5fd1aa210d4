"""The run-starter's decisions. Pure: rows and reports → what happens to attempts, runs and tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from retrofill.states import LAST_RANGE, AttemptMode, AttemptOutcome, TaskState
from retrofill.states import TASK_RUN_MACHINE as TASK_MACHINE
from retrofill_core.contract.base import Cost
from retrofill_core.contract.runs import (
    AttemptEnded,
    AttemptHeartbeat,
    ErrorInfo,
    Report,
    RunBaseChanged,
    RunBegan,
    RunPublicationPutOff,
    RunReport,
    RunReported,
    RunStaged,
    SparkApplication,
    TaskReported,
)
from retrofill_core.domain.run import LIVE, RunState
from run_starter.reports.steps import (
    RELEASED,
    UNKNOWN,
    Accept,
    AttemptEnd,
    AwaitPublisher,
    Begin,
    End,
    Hold,
    HoldAgain,
    Outcome,
    Requeue,
    Split,
    Step,
    TaskStep,
    failure,
    losses_of,
    with_loss,
)

if TYPE_CHECKING:
    from retrofill_core.store.rows import Attempt, Run

S = RunState
# The pause before the next publisher, doubled by each. After a stop or the first loss there is none.
PUT_OFF_SECONDS, MAX_PUT_OFF_SECONDS = 5.0, 600.0
TaskKey = tuple[int, int, str]
# What splits a range of several runs.
_SPLITS = (AttemptOutcome.FAILED, AttemptOutcome.LOST)


def _pause(row: Run) -> float:
    """Seconds until an accepted run may have its next publisher."""
    return min(PUT_OFF_SECONDS * 2.0 ** min(row.publication, 20), MAX_PUT_OFF_SECONDS)


def _error_of(row: Run) -> ErrorInfo | None:
    """That it timed out, if it is marked so. Its attempt is then to be released because of it."""
    return None if row.error is None else ErrorInfo.model_validate(row.error)


def _next_size(size: int, *, lost: bool) -> int:
    """The largest range in which runs of a range that failed or was lost are tried again.

    The parts of a lost one are suspects, which are never executed one after the other.
    """
    return 1 if size <= LAST_RANGE and not lost else max(1, size // 2)


class Fold:
    """Applies reports to the rows, in order. Ignores what is over."""

    def __init__(
        self,
        attempts: Mapping[int, Attempt],
        runs: Mapping[int, Run],
        tasks: Mapping[TaskKey, TaskState],
        task_names: Mapping[int, Sequence[str]],
        max_lost_attempts: int,
        *,
        cancelled: Collection[int] = (),
        approvals: Mapping[str, int] | None = None,
        refused: Mapping[int, ErrorInfo] | None = None,
    ) -> None:
        """``task_names``: by run id, of runs that have not begun: their task runs do not exist.

        ``cancelled``: runs that users cancelled, of attempts that are to be released; ``approvals``: how often each
        reviewed backfill was approved; ``refused``: why what these runs stage must not be accepted.
        """
        self.outcome = Outcome()
        self._attempts = attempts
        self._runs = runs
        self._states: dict[int, str] = {id: row.state for id, row in runs.items()}
        self._tasks = dict(tasks)
        self._task_names = task_names
        self._max_lost_attempts = max_lost_attempts
        self._cancelled = cancelled
        self._approvals = approvals or {}
        self._refused = refused or {}
        # By attempt: the first run that it leaves with its error, which the others share.
        self._first: dict[int, int] = {}

    def reports(self, reports: Iterable[Report]) -> Outcome:
        """Apply reports. Returns what changes."""
        for report in reports:
            why = self._apply(report)
            if why is not None:
                self.outcome.ignored.append((report, why))
        return self.outcome

    def lose(self, attempt_id: int, error: ErrorInfo, *, shared: bool = False) -> Outcome:
        """End an attempt whose driver is silent. ``shared``: its host is, too.

        The next run in order, or the whole range, may have begun without a report, so it counts as
        begun: no two executions of a run ever have the same number.
        """
        waiting = [row for row in self._of(attempt_id) if self._states[row.id] == S.STARTING]
        begun = min(waiting, key=lambda row: row.position).id if waiting else None
        self._end_attempt(self._attempts[attempt_id], AttemptOutcome.LOST, error, begun, shared=shared)
        return self.outcome

    def release(self, attempt_id: int, error: ErrorInfo) -> Outcome:
        """End an attempt that no host took over: nothing of it began."""
        self._end_attempt(self._attempts[attempt_id], AttemptOutcome.RELEASED, error, None)
        return self.outcome

    def _of(self, attempt_id: int) -> list[Run]:
        return [row for row in self._runs.values() if row.attempt_id == attempt_id]

    def _apply(self, report: Report) -> str | None:
        """Apply one report. Returns why it is ignored."""
        attempt = self._attempts.get(report.attempt_id)
        if attempt is None or not attempt.live or attempt.id in self.outcome.attempts:
            return "the attempt is over"
        match report:
            case AttemptHeartbeat():
                self.outcome.alive[attempt.id] = None
            case AttemptEnded(state=how, error=error, begun=begun):
                self._end_attempt(attempt, AttemptOutcome(how), error, begun, report.cost, shared=report.shared)
                if report.stays:
                    self.outcome.stays.add(attempt.id)
            case RunReport():
                return self._apply_to_run(report, attempt)
        return None

    def _apply_to_run(self, report: RunReport, attempt: Attempt) -> str | None:
        row = self._runs[report.run_id]
        state = self._states[row.id]
        if row.attempt_id != attempt.id:
            return "the run has another attempt"
        if state not in LIVE:
            return f"the run is {state}"
        self._begin(row, attempt, report.spark if isinstance(report, RunBegan) else None)
        match report:
            case TaskReported():
                return self._apply_to_task(report, self._number(row))
            case RunStaged(outputs=outputs, bases=bases) if self._states[row.id] == S.RUNNING:
                if row.id in self._refused:
                    self._step(row, End(S.FAILED, self._refused[row.id]), S.FAILED)
                elif self._held(row):
                    self._step(row, Hold(outputs, bases), S.STAGED)
                else:
                    self._step(row, Accept(outputs), S.PUBLISHING)
                self.outcome.alive[attempt.id] = None
            case RunPublicationPutOff(error=error):
                if self._states[row.id] != S.PUBLISHING:
                    return f"the run is {self._states[row.id]}"
                put_off = AwaitPublisher(
                    losses_of(row.losses), counted=False, error=error or UNKNOWN, seconds=_pause(row)
                )
                self._step(row, put_off, S.STAGED)
            case RunBaseChanged():
                return self._hold_again(report, row)
            case RunReported(state="succeeded", cost=cost, published=published):
                self._step(row, End(S.SUCCEEDED, cost=cost, published=published), S.SUCCEEDED)
            case RunReported(error=error, cost=cost):
                self._step(row, End(S.FAILED, error, cost=cost), S.FAILED)
        return None

    def _hold_again(self, report: RunBaseChanged, row: Run) -> str | None:
        approvals = self._approvals.get(row.backfill_id)
        if self._states[row.id] != S.PUBLISHING or approvals is None:
            return "the run publishes nothing that was reviewed"
        self._step(row, HoldAgain(approvals, report.bases, report.changed), S.STAGED)
        return None

    def _held(self, row: Run) -> bool:
        """Whether what it stages waits for a review."""
        approvals = self._approvals.get(row.backfill_id)
        return approvals is not None and row.review >= approvals

    def _begin(self, row: Run, attempt: Attempt, spark: SparkApplication | None = None) -> None:
        """The run's first report. The attempt's first one may name its Spark application."""
        if attempt.began_at is None:
            self.outcome.began.setdefault(attempt.id, spark)
        if self._states[row.id] == S.STARTING:
            self._step(row, Begin(row.started_at is None), S.RUNNING)
            number = self._number(row)
            self._tasks |= {(row.id, number, name): TaskState.NONE for name in self._task_names.get(row.id, ())}

    def _number(self, row: Run) -> int:
        """How often the run has begun, this batch included."""
        begins = any(isinstance(step, Begin) for step in self.outcome.runs.get(row.id, ()))
        return row.attempt + begins

    def _step(self, row: Run, step: Step, to: RunState) -> None:
        self.outcome.runs.setdefault(row.id, []).append(step)
        self._states[row.id] = to

    def _end_attempt(
        self,
        attempt: Attempt,
        outcome: AttemptOutcome,
        error: ErrorInfo | None,
        begun: int | None,
        cost: Cost | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """End an attempt, and what becomes of its unfinished runs."""
        mine = self._of(attempt.id)
        if attempt.release_requested and outcome != AttemptOutcome.DONE:
            # Its host ends its driver, so the end is not held against its other runs.
            over = next((_error_of(row) for row in mine if row.error is not None), None)
            failed = over is not None and attempt.mode == AttemptMode.RANGE
            outcome, error = AttemptOutcome.FAILED if failed else AttemptOutcome.RELEASED, over or RELEASED
        for row in mine:
            if row.id == begun or (begun is not None and attempt.mode == AttemptMode.RANGE):
                self._begin(row, attempt)
        left = [row for row in mine if self._states[row.id] in LIVE]
        runs = attempt.runs
        if outcome == AttemptOutcome.DONE:
            # Its duration is that of the others. If it began none, it has none.
            runs = runs - sum(self._states[row.id] == S.STARTING for row in left) or runs
        for row in left:
            self._leave(row, attempt, outcome, error, shared=shared)
        if attempt.cancelled and left and outcome != AttemptOutcome.DONE:
            outcome = AttemptOutcome.CANCELLED
        self.outcome.attempts[attempt.id] = AttemptEnd(outcome, runs, error, cost)

    def _leave(
        self, row: Run, attempt: Attempt, outcome: AttemptOutcome, error: ErrorInfo | None, *, shared: bool
    ) -> None:
        """What becomes of a run that its attempt left unfinished."""
        state = self._states[row.id]
        began = state != S.STARTING
        losses = losses_of(row.losses)
        # The end of a driver that its host ends is no loss.
        lost = began and outcome == AttemptOutcome.LOST and not attempt.cancelled
        # Of a run that was lost once with a whole host or Spark server, nothing suggests that it did that.
        excused = lost and shared and row.lost_at is None and not any(loss.shared for loss in losses)
        splits = state == S.RUNNING and attempt.mode == AttemptMode.RANGE and not (attempt.cancelled or excused)
        # What ended the driver is known only of a run that was retried alone.
        counted = lost and row.lost_at is not None and not splits
        count = row.lost_attempts + counted
        loss = error or UNKNOWN
        if lost:
            losses = with_loss(losses, self._number(row), loss, counted=counted, shared=shared)
        if splits and (outcome in _SPLITS or self._timed_out(row)):
            why = self._shared(row, attempt, loss)
            self._step(row, Split(_next_size(attempt.runs, lost=lost), why, losses, lost), S.QUEUED)
        elif state == S.PUBLISHING:
            # An accepted run is neither executed again nor cancelled, nor does it fail: its lost publishers may still
            # have published it.
            said = loss if lost else error
            pause = _pause(row) if counted else 0.0
            left = said and self._shared(row, attempt, said)
            self._step(row, AwaitPublisher(losses, counted, lost and not excused, left, pause), S.STAGED)
        elif counted and count >= self._max_lost_attempts:
            self._step(row, End(S.FAILED, failure(losses, count), losses, counted), S.FAILED)
        elif attempt.cancelled or row.id in self._cancelled:
            self._step(row, End(S.CANCELLED, None, losses, counted), S.CANCELLED)
        elif self._timed_out(row):
            self._step(row, End(S.FAILED, _error_of(row)), S.FAILED)
        else:
            requeued = self._shared(row, attempt, loss) if began else None
            self._step(row, Requeue(requeued, losses, counted, lost and not excused), S.QUEUED)

    def _shared(self, row: Run, attempt: Attempt, error: ErrorInfo) -> ErrorInfo:
        """The attempt's error for one of the runs that it leaves."""
        return error.of_run(row.id, self._first.setdefault(attempt.id, row.id))

    def _timed_out(self, row: Run) -> bool:
        """Whether it fails for it: its output was not accepted meanwhile."""
        return row.error is not None and self._states[row.id] == S.RUNNING

    def _apply_to_task(self, report: TaskReported, number: int) -> str | None:
        key = (report.run_id, number, report.task)
        from_state = self._tasks.get(key)
        if from_state is None:
            return f"the run has no task {report.task!r}"
        # A driver may report a task as running without having reported it as queued.
        path = (
            [TaskState.QUEUED, report.state]
            if (from_state, report.state) == (TaskState.NONE, TaskState.RUNNING)
            else [report.state]
        )
        for to in path:
            if not TASK_MACHINE.allows(from_state, to):
                # For example, a skip never overwrites a task that runs or has ended.
                return f"the task is {from_state}"
            last = to is path[-1]
            error = report.error if last else None
            self.outcome.tasks.append(TaskStep(*key, from_state, to, report.try_number, error, announce=last))
            from_state = self._tasks[key] = to
        return None
