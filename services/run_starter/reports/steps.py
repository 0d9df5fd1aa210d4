"""Steps of attempts, runs and tasks, which decisions of the run-starter consist of, and why runs lost drivers. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from retrofill.states import AttemptOutcome, TaskState
from retrofill.wording import times
from retrofill_core.contract.base import Cost
from retrofill_core.contract.runs import ErrorInfo, PublishedOutput, Report, SparkApplication
from retrofill_core.domain.run import RunState

KEPT = 10
REASON_CHARS = 300
UNKNOWN = ErrorInfo(type="DriverLost", message="no reason was reported")
RELEASED = ErrorInfo(type="AttemptReleased", message="a user canceled a run of the attempt, which ended the attempt")
SILENT = ErrorInfo(type="DriverLost", message="its lease ended: no heartbeat arrived in time")

HOST_SILENT = ErrorInfo(type="DriverLost", message="its lease ended, and its host is silent, too")


@dataclass(frozen=True)
class Loss:
    """``counted``: the run was retried alone, so it is what was lost with the driver.

    ``shared``: its whole host or Spark server was lost with it.
    """

    attempt: int
    reason: str
    counted: bool = True
    shared: bool = False


Losses = tuple[Loss, ...]


def losses_of(stored: Mapping[str, Any]) -> Losses:
    """The losses from a run's row."""
    # Before suspects, only losses that counted were stored.
    return tuple(
        Loss(one["attempt"], one["reason"], one.get("counted", True), one.get("shared", False))
        for one in stored.get("last", ())
    )


def stored(losses: Losses) -> dict[str, Any]:
    """The losses for a run's row, as an object: Postgres reads a list as an array dimension."""
    # asdict copies deeply: for the runs of a large range it takes longer than all else.
    return {"last": [_stored(loss) for loss in losses]} if losses else {}


def _stored(loss: Loss) -> dict[str, Any]:
    """Without what is as usual."""
    kept = dict(vars(loss))
    if not loss.shared:
        del kept["shared"]
    return kept


def with_loss(losses: Losses, attempt: int, error: ErrorInfo, *, counted: bool, shared: bool = False) -> Losses:
    """The losses with the newest one added, bounded in number and length."""
    return (*losses, Loss(attempt, error.message[:REASON_CHARS], counted, shared))[-KEPT:]


def failure(losses: Losses, count: int) -> ErrorInfo:
    """The error of a run that failed after ``count`` losses that counted, with the kept reasons."""
    reasons = (
        _fields_of([loss.attempt for loss in same], reason)
        for reason, same in groupby(losses, lambda loss: loss.reason)
    )
    message = f"the driver was lost {times(count)} when the run was retried alone; its losses: {'; '.join(reasons)}"
    return ErrorInfo(type="DriverLost", message=message[:4000])


def _fields_of(attempts: Sequence[int], reason: str) -> str:
    first, last = attempts[0], attempts[-1]
    return f"attempt {first}: {reason}" if first == last else f"attempts {first} to {last}: {reason}"


# What happens to a run. Each is applied by the function of the same name in ``outcomes.py``.


@dataclass(frozen=True)
class Begin:
    """Its driver began it. ``first``: for the first time."""

    first: bool


@dataclass(frozen=True)
class Accept:
    """Its output may be published."""

    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Hold:
    """Its output may be published once its backfill was reviewed. ``bases``: the state that each place had."""

    outputs: tuple[str, ...]
    bases: tuple[str, ...] = ()


@dataclass(frozen=True)
class HoldAgain:
    """It was approved, but others have changed what it would replace: it waits for the backfill's next ``review``."""

    review: int
    bases: tuple[str, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True)
class End:
    """It ended. ``losses``: as stored, with the one that ended it. ``published``: its outputs."""

    state: RunState
    error: ErrorInfo | None = None
    losses: Losses | None = None
    counted: bool = False
    cost: Cost | None = None
    published: tuple[PublishedOutput, ...] = ()

    @property
    def stored(self) -> dict[str, Any] | None:
        """``published``, as the run's row has it."""
        outputs = [_known(each) for each in self.published]
        return {"outputs": outputs} if outputs else None


def _known(output: PublishedOutput) -> dict[str, Any]:
    """What is known of it, without what is as usual."""
    return output.model_dump(exclude_none=True, exclude=None if output.replaced_change else {"replaced_change"})


@dataclass(frozen=True)
class Requeue:
    """Its attempt is over, and it gets another. ``loss``: ``None`` if it had not begun.

    ``suspect``: its driver was lost, so it is retried alone.
    """

    loss: ErrorInfo | None
    losses: Losses
    counted: bool
    suspect: bool = False


@dataclass(frozen=True)
class Split:
    """The range that it was part of did not succeed; its next one has at most ``size`` runs.

    ``suspect``: its driver was lost, so only runs of the same lost range are retried with it.
    """

    size: int
    error: ErrorInfo
    losses: Losses = ()
    suspect: bool = False


@dataclass(frozen=True)
class AwaitPublisher:
    """Its publisher was lost, stopped or could not publish its output, and another one does.

    ``error``: why that did not succeed, if it was not just stopped. ``seconds``: until the next one may try.
    """

    losses: Losses
    counted: bool
    suspect: bool = False
    error: ErrorInfo | None = None
    seconds: float = 0.0


Step = Begin | Accept | Hold | HoldAgain | End | Requeue | Split | AwaitPublisher
Kind = TypeVar("Kind", Begin, Accept, Hold, HoldAgain, End, Requeue, Split, AwaitPublisher)


@dataclass(frozen=True)
class AttemptEnd:
    """An attempt is over. ``runs``: how many it had, without those that its driver left to another attempt."""

    outcome: AttemptOutcome
    runs: int
    error: ErrorInfo | None = None
    cost: Cost | None = None


@dataclass(frozen=True)
class TaskStep:
    """One state change of one task. ``attempt``: how often the run has begun."""

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

    runs: dict[int, list[Step]] = field(default_factory=dict)
    attempts: dict[int, AttemptEnd] = field(default_factory=dict)
    began: dict[int, SparkApplication | None] = field(default_factory=dict)  # attempts
    alive: dict[int, None] = field(default_factory=dict)  # attempts whose lease is renewed
    stays: set[int] = field(default_factory=set)  # attempts whose driver process stays
    tasks: list[TaskStep] = field(default_factory=list)
    ignored: list[tuple[Report, str]] = field(default_factory=list)

    def first_starts(self) -> list[int]:
        """The ids of runs that begin for the first time."""
        return [id for id, step in self.steps(Begin) if step.first]

    def steps(self, kind: type[Kind]) -> list[tuple[int, Kind]]:
        """The run ids and steps of one kind."""
        return [(id, step) for id, steps in self.runs.items() for step in steps if isinstance(step, kind)]
