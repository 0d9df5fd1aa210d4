"""Steps of attempts, runs and tasks, which a decision of the run-starter consists of. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from retrofill.states import AttemptOutcome, TaskState
from retrofill_core.contract.base import Cost
from retrofill_core.contract.runs import ErrorInfo, PublishedOutput, Report, SparkApplication
from retrofill_core.domain.run import RunState
from run_starter.reports.losses import Losses

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
