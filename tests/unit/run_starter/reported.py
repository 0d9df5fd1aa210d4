"""Rows of runs and the reports that are folded over them."""

from retrofill.contract.runs import ErrorInfo, RunHeartbeat, RunReported, RunStaged, TaskReported
from retrofill.domain.run import RunState as R
from retrofill.domain.task_run import TaskState as T
from run_starter.decide import RunRow, fold

# reports

MOST_LOST = 5
ERROR = ErrorInfo(type="E", message="no disk")


def row(state=R.RUNNING, attempt=2, *, lost=0, cancel=False, started=True):
    return RunRow(7, R(state), attempt, lost, cancel, started)


def beat(attempt=2):
    return RunHeartbeat(backfill_id="b", run_id=7, attempt=attempt)


def task(state, name="t", attempt=2, **more):
    return TaskReported(backfill_id="b", run_id=7, attempt=attempt, task=name, state=state, **more)


def staged(attempt=2, publication=0):
    return RunStaged(backfill_id="b", run_id=7, attempt=attempt, publication=publication, outputs=("/o",))


def ended(state, attempt=2, error=None):
    return RunReported(backfill_id="b", run_id=7, attempt=attempt, state=state, error=error)


def fold_all(reports, of=None, tasks=None, most=MOST_LOST):
    of = of or row()
    states = {(7, of.attempt, name): T(state) for name, state in (tasks or {"t": "none"}).items()}
    return fold(reports, {7: of}, states, most)


REPORTS = {
    "heartbeat": beat,
    "task": lambda attempt: task("queued", attempt=attempt),
    "staged": staged,
    **{
        how: (lambda attempt, how=how: ended(how, attempt, ERROR))
        for how in ("succeeded", "failed", "cancelled", "lost", "released")
    },
}
