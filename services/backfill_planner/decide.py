"""The planner's decisions. Pure: rows and a message → a decision.

Planning itself is in ``retrofill_core.domain.planning``, which dry runs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from retrofill.wording import plural
from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillDiscardRequested,
    BackfillPauseRequested,
    BackfillPublishRequested,
    BackfillResumeRequested,
)
from retrofill_core.domain.backfill import ACTIVE, BackfillState, OnRunFailure, end_state
from retrofill_core.domain.run import RunState

if TYPE_CHECKING:
    from retrofill_core.store.backfills import Progress
    from retrofill_core.store.rows import Backfill

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


Answer = Enter | Approved | Unchanged | Refuse


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


def answer_command(command: Command, state: str, used_up: str | None = None, approved: int | None = None) -> Answer:
    """Decide on a command for a backfill in ``state``.

    ``used_up``: which limit of the budget is reached, of the one that a resume brings along.
    ``approved``: how often what it staged was approved; ``None`` if that needs no review.
    """
    if isinstance(command, BackfillPublishRequested | BackfillDiscardRequested) and state != S.IN_REVIEW:
        return _not_in_review(command, S(state), approved)
    if isinstance(command, BackfillResumeRequested):
        if state == S.RUNNING and command.budget is not None:
            return Refuse("the backfill is running: pause it before you give it another budget")
        if state == S.PAUSED and used_up is not None:
            return Refuse(f"its budget is used up: {used_up}; resume it with a larger one (budget, --budget)")
    if isinstance(command, BackfillPublishRequested) and command.review not in (None, approved or 0):
        return Refuse(
            "a new review has started: the output that it would replace has changed; compare again (diff), then publish"
        )
    target, sources, done = _COMMANDS[type(command)]
    if state in sources:
        return Enter(target)
    if state in done:
        return Unchanged(S(state))
    verb = command.type.removeprefix("Backfill").removesuffix("Requested").lower()
    return nothing_to_do(state, verb)


def _not_in_review(
    command: BackfillPublishRequested | BackfillDiscardRequested, state: BackfillState, approved: int | None
) -> Answer:
    """The answer to a command for a review that has not begun, is over or was never asked for."""
    if approved is None:
        return Refuse("its request did not ask for a review (publish, --review): its runs publish at once")
    if isinstance(command, BackfillPublishRequested) and approved and not command.intervals:
        return Approved()
    if isinstance(command, BackfillDiscardRequested) and state in (S.CANCELLING, S.CANCELLED):
        return Unchanged(state)
    if approved and isinstance(command, BackfillDiscardRequested):
        return Refuse(
            "approved output can no longer be discarded; intervals that were left out wait for the next review"
        )
    if state in (S.RUNNING, S.PAUSED):
        return Refuse(f"the backfill is {state}: it is reviewed once all its runs have ended or staged their output")
    return nothing_to_do(state, "publish" if isinstance(command, BackfillPublishRequested) else "discard")


@dataclass(frozen=True)
class End:
    """The backfill ends in ``state``."""

    state: BackfillState


@dataclass(frozen=True)
class Pause:
    """A run failed and ``on_run_failure`` is ``pause``, or its budget is used up; ``message`` says which limit."""

    cause: Literal["run_failure", "budget"]
    message: str | None = None


@dataclass(frozen=True)
class CancelForFailure:
    """A run failed and ``on_run_failure`` is ``cancel``."""


@dataclass(frozen=True)
class BeginReview:
    """Only runs that have ended, and staged ones, are left. ``complete``: each will have succeeded."""

    complete: bool


def judge(
    backfill: Backfill, runs: Progress, used_up: str | None
) -> End | BeginReview | Pause | CancelForFailure | None:
    """Decide whether a backfill ends, is to be reviewed, pauses or cancels over a failed run, or used up its budget.

    ``used_up``: which limit of it.
    """
    if backfill.state not in ACTIVE or backfill.state == S.IN_REVIEW:
        return None
    cancelling, not_done = backfill.state == S.CANCELLING, runs.any_failed or runs.any_run_cancelled
    if not runs.any_unfinished:
        return End(end_state(cancelling=cancelling, cancel_cause=backfill.cancel_cause, any_not_done=not_done))
    on_failure = backfill.on_run_failure if runs.failed_since_resume else None
    if on_failure == OnRunFailure.CANCEL and not cancelling:
        return CancelForFailure()
    if not runs.any_open:
        # A pause would hold up nothing.
        waits = runs.any_held and not runs.any_publishing and not cancelling
        return BeginReview(complete=not not_done) if waits else None
    if backfill.state == S.RUNNING and on_failure == OnRunFailure.PAUSE:
        return Pause("run_failure")
    if backfill.state == S.RUNNING and used_up is not None:
        return Pause("budget", used_up)
    return None


def why_failed(runs: Mapping[str, int]) -> str | None:
    """Why a backfill failed, given its number of runs by state."""
    parts = [f"{runs[state]:,} {state}" for state in (RunState.FAILED, RunState.CANCELLED) if runs.get(state)]
    return f"of {plural(sum(runs.values()), 'run')}: {', '.join(parts)}" if parts else None
