"""The run-starter's decisions. Pure: rows and reports → outcomes of runs and steps of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retrofill.contract.runs import ErrorInfo, Report, RunHeartbeat, RunReported, RunStaged, TaskReported
from retrofill.domain.run import LIVE, RunState, after_loss
from retrofill.domain.task_run import MACHINE as TASK_MACHINE
from retrofill.domain.task_run import TaskState
from run_starter.losses import UNKNOWN, Losses, failure, with_loss

# reports


@dataclass(frozen=True)
class RunRow:
    """The fields of a run that decisions need."""

    id: int
    state: RunState
    attempt: int
    lost_attempts: int
    cancel_requested: bool
    started_before: bool
    publication: int = 0
    orphaned: bool = False  # accepted, but no driver publishes it
    losses: Losses = ()  # the last few that counted


@dataclass
class RunOutcome:
    """What a batch of reports changes about one run."""

    starts: bool = False
    first_start: bool = False
    alive: bool = False
    stages: tuple[str, ...] = ()  # the attempt is accepted: publish these outputs
    orphaned: bool = False  # its publisher was lost: another driver must publish it
    ends: RunState | None = None  # queued: it gets a new attempt
    lost: bool = False  # its driver was lost
    counted: bool = False  # the loss counts towards the limit
    loss: ErrorInfo | None = None  # why the driver was lost
    losses: Losses = ()  # the run's, including this one if it counts
    error: ErrorInfo | None = None


@dataclass(frozen=True)
class TaskStep:
    """One state change of one task."""

    run_id: int
    attempt: int
    task: str
    from_state: TaskState
    to: TaskState
    try_number: int
    error: ErrorInfo | None
    announce: bool  # publish an event; not for the implicit step to queued


@dataclass
class Outcome:
    """What a batch of reports changes. ``ignored``: the others, each with the reason."""

    runs: dict[int, RunOutcome] = field(default_factory=dict)
    tasks: list[TaskStep] = field(default_factory=list)
    ignored: list[tuple[Report, str]] = field(default_factory=list)


TaskKey = tuple[int, int, str]


def fold(
    reports: Sequence[Report], runs: Mapping[int, RunRow], tasks: Mapping[TaskKey, TaskState], max_lost_attempts: int
) -> Outcome:
    """Apply reports to the rows, in order. Ignores older attempts and runs that are not live."""
    outcome = Outcome()
    task_states = dict(tasks)
    for report in reports:
        row = runs[report.run_id]
        sofar = outcome.runs.get(report.run_id, RunOutcome())
        if report.attempt != row.attempt:
            outcome.ignored.append((report, f"attempt {row.attempt} is the newest"))
        elif report.publication != row.publication:
            outcome.ignored.append((report, f"publication {row.publication} is the newest"))
        elif row.state not in LIVE or sofar.ends is not None:
            outcome.ignored.append((report, f"the run is {sofar.ends or row.state}"))
        elif row.orphaned or sofar.orphaned:
            outcome.ignored.append((report, "its publisher was lost"))
        else:
            outcome.runs[report.run_id] = sofar
            _fold_one(report, row, sofar, task_states, outcome, max_lost_attempts)
    return outcome


def _fold_one(
    report: Report,
    row: RunRow,
    sofar: RunOutcome,
    task_states: dict[TaskKey, TaskState],
    outcome: Outcome,
    max_lost_attempts: int,
) -> None:
    match report:
        case RunHeartbeat():
            sofar.alive = True
            _start(row, sofar)
        case TaskReported():
            _start(row, sofar)
            _fold_task(report, task_states, outcome)
        case RunStaged(outputs=outputs):
            _start(row, sofar)
            sofar.alive = True
            if row.state != RunState.PUBLISHING:
                sofar.stages = outputs
        case RunReported(state="succeeded"):
            _start(row, sofar)
            sofar.ends = RunState.SUCCEEDED
        case RunReported(state="failed", error=error):
            _start(row, sofar)
            sofar.ends, sofar.error = RunState.FAILED, error
        case RunReported(state=how, error=error):
            lose(row, sofar, max_lost_attempts, counted=how != "released", error=error)


def _start(row: RunRow, sofar: RunOutcome) -> None:
    if row.state == RunState.STARTING and not sofar.starts:
        sofar.starts = True
        sofar.first_start = not row.started_before


def lose(row: RunRow, sofar: RunOutcome, max_lost_attempts: int, *, counted: bool, error: ErrorInfo | None) -> None:
    """Decide on an attempt whose driver was lost. Only a ``counted`` loss can fail the run."""
    lost = row.lost_attempts + counted
    sofar.lost, sofar.counted, sofar.loss = True, counted, error or UNKNOWN
    sofar.losses = with_loss(row.losses, row.attempt, sofar.loss) if counted else row.losses
    if row.state == RunState.PUBLISHING or sofar.stages:
        # An accepted attempt is neither repeated nor cancelled: another driver publishes it.
        sofar.ends = RunState.FAILED if counted and lost >= max_lost_attempts else None
        sofar.orphaned = sofar.ends is None
    else:
        sofar.ends = after_loss(
            cancel_requested=row.cancel_requested,
            lost_attempts=lost if counted else 0,
            max_lost_attempts=max_lost_attempts,
        )
    if sofar.ends == RunState.FAILED:
        sofar.error = failure(sofar.losses, lost)


def _fold_task(report: TaskReported, states: dict[TaskKey, TaskState], outcome: Outcome) -> None:
    key = (report.run_id, report.attempt, report.task)
    from_state = states.get(key)
    if from_state is None:
        outcome.ignored.append((report, f"the run has no task {report.task!r}"))
        return
    # A driver may report a task as running without having reported it as queued.
    path = (
        [TaskState.QUEUED, report.state]
        if (from_state, report.state) == (TaskState.NONE, TaskState.RUNNING)
        else [report.state]
    )
    for to in path:
        if not TASK_MACHINE.allows(from_state, to):
            # For example, a skip never overwrites a task that runs or has ended.
            outcome.ignored.append((report, f"the task is {from_state}"))
            return
        last = to is path[-1]
        error = report.error if last else None
        outcome.tasks.append(
            TaskStep(
                report.run_id, report.attempt, report.task, from_state, to, report.try_number, error, announce=last
            )
        )
        from_state = states[key] = to
