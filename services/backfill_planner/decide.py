"""The planner's decisions. Pure: rows and a message → a decision.

Planning itself is in ``retrofill.domain.planning``, which dry runs share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retrofill.contract.backfills import (
    BackfillCancelRequested,
    BackfillPauseRequested,
    BackfillResumeRequested,
)
from retrofill.domain.backfill import ACTIVE, BackfillState, OnRunFailure, end_state
from retrofill.domain.run import RunState

S = BackfillState
Command = BackfillPauseRequested | BackfillResumeRequested | BackfillCancelRequested


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


Answer = Enter | Unchanged | Refuse
NO_BACKFILL = Refuse("there is no backfill with this id: 'retrofill backfill list' shows them all")


def nothing_to_do(state: str, verb: str) -> Refuse:
    """Refuse a command because of the backfill's state."""
    return Refuse(f"the backfill is {state}: there is nothing to {verb}")


# command → its target state, the states it starts from, the states in which it is already done
_COMMANDS: dict[type[Command], tuple[BackfillState, tuple[BackfillState, ...], tuple[BackfillState, ...]]] = {
    BackfillPauseRequested: (S.PAUSED, (S.RUNNING,), (S.PAUSED,)),
    BackfillResumeRequested: (S.RUNNING, (S.PAUSED,), (S.RUNNING,)),
    BackfillCancelRequested: (S.CANCELLING, (S.RUNNING, S.PAUSED), (S.CANCELLING, S.CANCELLED)),
}


def answer_command(command: Command, state: str | None) -> Answer:
    """Decide on a command for a backfill in ``state`` (``None``: no such backfill)."""
    if state is None:
        return NO_BACKFILL
    target, sources, done = _COMMANDS[type(command)]
    if state in sources:
        return Enter(target)
    if state in done:
        return Unchanged(S(state))
    verb = command.type.removeprefix("Backfill").removesuffix("Requested").lower()
    return nothing_to_do(state, verb)


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


def judge(snapshot: Snapshot) -> End | PauseForFailure | CancelForFailure | None:
    """Decide whether a backfill ends, or pauses or cancels over a failed run."""
    if snapshot.state not in ACTIVE:
        return None
    if not snapshot.any_unfinished:
        cancelling = snapshot.state == S.CANCELLING
        not_done = snapshot.any_failed or snapshot.any_run_cancelled
        return End(end_state(cancelling=cancelling, cancel_cause=snapshot.cancel_cause, any_not_done=not_done))
    if not snapshot.failed_since_resume:
        return None
    if snapshot.on_run_failure == OnRunFailure.PAUSE and snapshot.state == S.RUNNING:
        return PauseForFailure()
    if snapshot.on_run_failure == OnRunFailure.CANCEL and snapshot.state != S.CANCELLING:
        return CancelForFailure()
    return None


def why_failed(runs: Mapping[str, int]) -> str | None:
    """Why a backfill failed, given its number of runs by state."""
    parts = [f"{runs[state]:,} {state}" for state in (RunState.FAILED, RunState.CANCELLED) if runs.get(state)]
    return f"of {sum(runs.values()):,} runs: {', '.join(parts)}" if parts else None
