"""Rows of attempts and runs, the reports that are folded over them, and the rows that result."""

from dataclasses import replace

from tests.support.rows import NOW, a_run, an_attempt

from retrofill.states import AttemptMode
from retrofill.states import TaskState as T
from retrofill_core.contract.runs import (
    AttemptEnded,
    AttemptHeartbeat,
    ErrorInfo,
    RunBegan,
    RunPublicationPutOff,
    RunReported,
    RunStaged,
    TaskReported,
)
from retrofill_core.domain.run import RunState as R
from run_starter.reports.decide import Fold
from run_starter.reports.steps import Accept, AwaitPublisher, Begin, End, Requeue, stored

MOST_LOST = 5
ERROR = ErrorInfo(type="E", message="no disk")
OF = 5  # the attempt that these tests are about


def attempt(id=OF, *, live=True, began=True, mode=AttemptMode.EACH, runs=1, cancel=False, release=False):
    began_at = NOW if began else None
    more = {"cancel_requested": cancel, "release_requested": release}
    return an_attempt(id=id, state="running" if live else "ended", began_at=began_at, mode=mode, runs=runs, **more)


def run(
    state=R.RUNNING,
    id=7,
    *,
    of=OF,
    number=2,
    position=None,
    lost=0,
    before=True,
    suspect=False,
    losses=(),
    timed_out=None,
    publication=0,
):
    return a_run(
        id=id,
        state=state,
        attempt_id=of,
        attempt=number,
        position=id if position is None else position,
        lost_attempts=lost,
        started_at=NOW if before else None,
        lost_at=NOW if suspect else None,
        losses=stored(losses),
        error=timed_out and timed_out.model_dump(),
        publication=publication,
    )


def beat(of=OF):
    return AttemptHeartbeat(backfill_id="b", attempt_id=of)


def over(how="done", of=OF, begun=None, error=None, **more):
    return AttemptEnded(backfill_id="b", attempt_id=of, state=how, begun=begun, error=error, **more)


def about(run_id=7, of=OF):
    return {"backfill_id": "b", "attempt_id": of, "run_id": run_id, "attempt": 2}


def began(run_id=7, of=OF):
    return RunBegan(**about(run_id, of))


def task(state, name="t", run_id=7, of=OF, **more):
    return TaskReported(**about(run_id, of), task=name, state=state, **more)


def staged(run_id=7, of=OF):
    return RunStaged(**about(run_id, of), outputs=("/o",))


def put_off(run_id=7, of=OF):
    return RunPublicationPutOff(**about(run_id, of), error=ERROR)


def ended(state, run_id=7, of=OF, error=None):
    return RunReported(**about(run_id, of), state=state, error=error)


def fold_of(runs=None, attempts=None, tasks=None, names=("t",), most=MOST_LOST, **more):
    """``tasks``: states by name, of all runs that have begun; ``names``: tasks of the others."""
    runs = [run()] if runs is None else runs
    states = {
        (row.id, row.attempt, name): T(state)
        for row in runs
        if row.state != R.STARTING
        for name, state in (tasks or {"t": "none"}).items()
    }
    return Fold(
        {row.id: row for row in attempts or [attempt()]},
        {row.id: row for row in runs},
        states,
        {row.id: names for row in runs if row.state == R.STARTING},
        most,
        **more,
    )


def fold(reports, runs=None, attempts=None, **more):
    return fold_of(runs, attempts, **more).reports(reports)


def steps(made):
    """What happens to run 7."""
    return made.runs.get(7, [])


REPORTS = {
    "began": began,
    "task": lambda run_id=7, of=OF: task("queued", run_id=run_id, of=of),
    "staged": staged,
    "succeeded": lambda run_id=7, of=OF: ended("succeeded", run_id, of, ERROR),
    "failed": lambda run_id=7, of=OF: ended("failed", run_id, of, ERROR),
}
ALL = {**REPORTS, "heartbeat": lambda run_id=7, of=OF: beat(of), "end": lambda run_id=7, of=OF: over("lost", of)}


def path(row, taken):
    """The states of a run."""
    states = [row.state]
    for step in taken:
        match step:
            case Begin():
                states.append(R.RUNNING)
            case Accept():
                states.append(R.PUBLISHING)
            case End(state=state):
                states.append(state)
            case Requeue():
                states.append(R.QUEUED)
            case AwaitPublisher():
                states.append(R.STAGED)
    return states


def rows_after(runs, made):
    """The runs' rows as an outcome leaves them."""
    after = dict(runs)
    for id, taken in made.runs.items():
        row, last = runs[id], taken[-1]
        ends = isinstance(last, Requeue | AwaitPublisher | End)
        after[id] = replace(
            row,
            state=path(row, taken)[-1],
            attempt=row.attempt + sum(isinstance(step, Begin) for step in taken),
            started_at=row.started_at or (NOW if any(isinstance(step, Begin) for step in taken) else None),
            lost_at=None if isinstance(last, End) else row.lost_at or (NOW if ends and last.suspect else None),
            lost_attempts=row.lost_attempts + (ends and last.counted),
            losses=stored(last.losses) if ends and last.losses is not None else row.losses,
        )
    return after


def attempts_after(attempts, made):
    """The attempts' rows as an outcome leaves them."""
    return {
        id: replace(
            row,
            state="ended" if id in made.attempts else row.state,
            began_at=row.began_at or (NOW if id in made.began else None),
        )
        for id, row in attempts.items()
    }
