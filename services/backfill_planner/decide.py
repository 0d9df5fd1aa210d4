"""The planner's decisions. Pure: (what the rows say, message, now) → a decision; how a request is planned is in
``retrofill.domain.planning``, which a dry run shares."""

from __future__ import annotations

from dataclasses import dataclass

from retrofill.contract.backfills import (
    BackfillCancelRequested,
    BackfillPauseRequested,
    BackfillResumeRequested,
)
from retrofill.domain.backfill import ACTIVE, BackfillState, CancelCause, OnRunFailure, end_state

S = BackfillState
Command = BackfillPauseRequested | BackfillResumeRequested | BackfillCancelRequested


@dataclass(frozen=True)
class Enter:
    """Move the backfill to ``state``, and say so."""

    state: BackfillState


@dataclass(frozen=True)
class AlreadyThere:
    """Nothing changes; the answer is that it is in ``state``."""

    state: BackfillState


@dataclass(frozen=True)
class Refuse:
    """The command cannot be followed."""

    message: str


Answer = Enter | AlreadyThere | Refuse

# command → the state it leads to, the states it may come from, those in which it has been followed already
_COMMANDS: dict[type[Command], tuple[BackfillState, tuple[BackfillState, ...], tuple[BackfillState, ...]]] = {
    BackfillPauseRequested: (S.PAUSED, (S.RUNNING,), (S.PAUSED,)),
    BackfillResumeRequested: (S.RUNNING, (S.PAUSED,), (S.RUNNING,)),
    BackfillCancelRequested: (S.CANCELLING, (S.RUNNING, S.PAUSED), (S.CANCELLING, S.CANCELLED)),
}


def answer_command(command: Command, state: str | None) -> Answer:
    """What a pause, resume or cancel does to a backfill in ``state`` (``None``: there is none)."""
    if state is None:
        return Refuse("there is no backfill with this id: 'retrofill backfill list' shows those there are")
    target, sources, followed = _COMMANDS[type(command)]
    if state in sources:
        return Enter(target)
    if state in followed:
        return AlreadyThere(S(state))
    wish = command.type.removeprefix("Backfill").removesuffix("Requested").lower()
    return Refuse(f"the backfill is {state}: there is nothing to {wish}")


@dataclass(frozen=True)
class Standing:
    """How far a backfill is."""

    state: BackfillState
    cancel_cause: str | None
    on_run_failure: OnRunFailure
    any_unfinished: bool
    any_failed: bool
    failed_since_resume: bool


@dataclass(frozen=True)
class End:
    """The backfill ends in ``state``."""

    state: BackfillState


@dataclass(frozen=True)
class PauseForFailure:
    """A run failed and the backfill wants to be paused then."""


@dataclass(frozen=True)
class CancelForFailure:
    """A run failed and the backfill wants to be cancelled then."""


def judge(standing: Standing) -> End | PauseForFailure | CancelForFailure | None:
    """What follows from the rows: an end, a pause or cancel for a failed run, or nothing."""
    if standing.state not in ACTIVE:
        return None
    if not standing.any_unfinished:
        cancelling = standing.state == S.CANCELLING
        return End(end_state(cancelling=cancelling, cancel_cause=standing.cancel_cause, any_failed=standing.any_failed))
    if not standing.failed_since_resume:
        return None
    if standing.on_run_failure == OnRunFailure.PAUSE and standing.state == S.RUNNING:
        return PauseForFailure()
    if standing.on_run_failure == OnRunFailure.CANCEL and standing.state != S.CANCELLING:
        return CancelForFailure()
    return None


def cause_of(decision: PauseForFailure | CancelForFailure | Enter) -> CancelCause:
    """Who is behind a change."""
    return CancelCause.USER if isinstance(decision, Enter) else CancelCause.RUN_FAILURE
