"""The planner's decisions. Pure: rows and a message → a decision.

Planning itself is in ``retrofill_core.domain.planning``, which dry runs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillDiscardRequested,
    BackfillPauseRequested,
    BackfillPublishRequested,
    BackfillResumeRequested,
)
from retrofill_core.domain.backfill import ACTIVE, BackfillState, OnRunFailure, end_state
from retrofill_core.domain.run import RunState

S = BackfillState
Command = (
    BackfillPauseRequested
    | BackfillResumeRequested
    | BackfillPublishRequested
    | BackfillDiscardRequested
    | BackfillCancelRequested
)


@dataclass(frozen=True)
class Enter:
    """Move the backfill to ``state`` and announce it."""

    state: BackfillState


@dataclass(frozen=True)
class Unchanged:
    """The backfill is in the state that the command leads to, or past it."""

    state: BackfillState


@dataclass(frozen=True)
class Refuse:
    """The command cannot be carried out."""

    message: str


@dataclass(frozen=True)
class Approved:
    """What it has staged is being published, or was."""


class Review(Enum):
    """Whether what a backfill stages waits for a review."""

    NONE = auto()
    WAITS = auto()
    APPROVED = auto()

    @classmethod
    def of(cls, *, review: bool, approved_at: datetime | None) -> Review:
        """From the columns of a backfill's row."""
        if not review:
            return cls.NONE
        return cls.WAITS if approved_at is None else cls.APPROVED


Answer = Enter | Approved | Unchanged | Refuse
NO_BACKFILL = Refuse("there is no backfill with this id: 'retrofill backfill list' shows them all")


def nothing_to_do(state: str, verb: str) -> Refuse:
    """Refuse a command because of the backfill's state."""
    return Refuse(f"the backfill is {state.replace('_', ' ')}: there is nothing to {verb}")


# command → its target state, the states it starts from, the states in which it is already done
_COMMANDS: dict[type[Command], tuple[BackfillState, tuple[BackfillState, ...], tuple[BackfillState, ...]]] = {
    BackfillPauseRequested: (S.PAUSED, (S.RUNNING,), (S.PAUSED,)),
    BackfillResumeRequested: (S.RUNNING, (S.PAUSED,), (S.RUNNING,)),
    BackfillPublishRequested: (S.RUNNING, (S.IN_REVIEW,), ()),
    BackfillDiscardRequested: (S.CANCELLING, (S.IN_REVIEW,), (S.CANCELLING, S.CANCELLED)),
    BackfillCancelRequested: (S.CANCELLING, (S.RUNNING, S.PAUSED, S.IN_REVIEW), (S.CANCELLING, S.CANCELLED)),
}


def answer_command(
    command: Command,
    state: str | None,
    used_up: str | None = None,
    review: Review = Review.NONE,
    approvals: int = 0,
) -> Answer:
    """Decide on a command for a backfill in ``state`` (``None``: no such backfill), approved so often.

    ``used_up``: which limit of the budget is reached, of the one that a resume brings along.
    """
    if state is None:
        return NO_BACKFILL
    if isinstance(command, BackfillPublishRequested | BackfillDiscardRequested) and state != S.IN_REVIEW:
        return _not_in_review(command, S(state), review)
    if isinstance(command, BackfillResumeRequested):
        if state == S.RUNNING and command.budget is not None:
            return Refuse("the backfill is running: pause it before it gets another budget")
        if state == S.PAUSED and used_up is not None:
            return Refuse(f"its budget is used up: {used_up}; resume it with a larger one (budget, --budget)")
    if isinstance(command, BackfillPublishRequested) and command.review not in (None, approvals):
        return Refuse(
            "another review has begun since: what it would replace was changed; compare again (diff), and then publish"
        )
    target, sources, done = _COMMANDS[type(command)]
    if state in sources:
        return Enter(target)
    if state in done:
        return Unchanged(S(state))
    verb = command.type.removeprefix("Backfill").removesuffix("Requested").lower()
    return nothing_to_do(state, verb)


def _not_in_review(
    command: BackfillPublishRequested | BackfillDiscardRequested, state: BackfillState, review: Review
) -> Answer:
    """The answer to a command for a review that has not begun, is over or was never asked for."""
    if review == Review.NONE:
        return Refuse("its request did not ask for a review (publish, --review): its runs publish at once")
    if isinstance(command, BackfillPublishRequested) and review == Review.APPROVED:
        return Approved()
    if isinstance(command, BackfillDiscardRequested) and state in (S.CANCELLING, S.CANCELLED):
        return Unchanged(state)
    if review == Review.APPROVED:
        return Refuse("its output was approved and can no longer be discarded")
    if state in (S.RUNNING, S.PAUSED):
        return Refuse(f"the backfill is {state}: it is reviewed once all its runs have ended or staged their output")
    return nothing_to_do(state, "publish" if isinstance(command, BackfillPublishRequested) else "discard")


@dataclass(frozen=True)
class Snapshot:
    """The facts about a backfill that ``judge`` needs."""

    state: BackfillState
    cancel_cause: str | None
    on_run_failure: OnRunFailure
    any_unfinished: bool
    any_failed: bool
    any_run_cancelled: bool
    failed_since_resume: bool
    used_up: str | None = None  # which limit of its budget
    any_held: bool = False  # a run whose output waits for a review
    any_publishing: bool = False  # one whose output was accepted, and approved if that is needed
    any_open: bool = True  # one whose output was not accepted


@dataclass(frozen=True)
class End:
    """The backfill ends in ``state``."""

    state: BackfillState


@dataclass(frozen=True)
class PauseForFailure:
    """A run failed and ``on_run_failure`` is ``pause``."""


@dataclass(frozen=True)
class CancelForFailure:
    """A run failed and ``on_run_failure`` is ``cancel``."""


@dataclass(frozen=True)
class BeginReview:
    """Only runs that have ended, and staged ones, are left. ``complete``: each will have succeeded."""

    complete: bool


@dataclass(frozen=True)
class PauseForBudget:
    """Its budget is used up; ``message`` says which limit."""

    message: str


def judge(snapshot: Snapshot) -> End | BeginReview | PauseForFailure | CancelForFailure | PauseForBudget | None:
    """Decide whether a backfill ends, is to be reviewed, pauses or cancels over a failed run, or used up its budget."""
    if snapshot.state not in ACTIVE or snapshot.state == S.IN_REVIEW:
        return None
    not_done = snapshot.any_failed or snapshot.any_run_cancelled
    if not snapshot.any_unfinished:
        cancelling = snapshot.state == S.CANCELLING
        return End(end_state(cancelling=cancelling, cancel_cause=snapshot.cancel_cause, any_not_done=not_done))
    on_failure = snapshot.on_run_failure if snapshot.failed_since_resume else None
    if on_failure == OnRunFailure.CANCEL and snapshot.state != S.CANCELLING:
        return CancelForFailure()
    if not snapshot.any_open:
        # A pause would hold up nothing.
        waits = snapshot.any_held and not snapshot.any_publishing and snapshot.state != S.CANCELLING
        return BeginReview(complete=not not_done) if waits else None
    if on_failure == OnRunFailure.PAUSE and snapshot.state == S.RUNNING:
        return PauseForFailure()
    if snapshot.used_up is not None and snapshot.state == S.RUNNING:
        return PauseForBudget(snapshot.used_up)
    return None


def why_failed(runs: Mapping[str, int]) -> str | None:
    """Why a backfill failed, given its number of runs by state."""
    parts = [f"{runs[state]:,} {state}" for state in (RunState.FAILED, RunState.CANCELLED) if runs.get(state)]
    return f"of {sum(runs.values()):,} runs: {', '.join(parts)}" if parts else None
