"""A backfill: one request to process a range of data intervals of one pipeline."""

from __future__ import annotations

import shlex
from enum import StrEnum

from retrofill.states import machine


class BackfillState(StrEnum):
    """States of a backfill."""

    RUNNING = "running"
    PAUSED = "paused"
    IN_REVIEW = "in_review"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


S = BackfillState
MACHINE = machine(
    "backfill",
    {
        S.RUNNING: (S.PAUSED, S.IN_REVIEW, S.CANCELLING, S.SUCCEEDED, S.FAILED),
        S.PAUSED: (S.RUNNING, S.IN_REVIEW, S.CANCELLING, S.SUCCEEDED, S.FAILED),
        S.IN_REVIEW: (S.RUNNING, S.CANCELLING),
        S.CANCELLING: (S.CANCELLED, S.FAILED),
        S.CANCELLED: (),
        S.SUCCEEDED: (),
        S.FAILED: (),
    },
)

# Two backfills in these states never share a data interval of a pipeline (the exclusion
# constraint).
ACTIVE = (S.RUNNING, S.PAUSED, S.IN_REVIEW, S.CANCELLING)


class ReprocessBehavior(StrEnum):
    """Which intervals with a finished run are run again."""

    NONE = "none"
    FAILED = "failed"
    COMPLETED = "completed"


class OnRunFailure(StrEnum):
    """What happens to a backfill when one of its runs fails permanently."""

    CONTINUE = "continue"
    PAUSE = "pause"
    CANCEL = "cancel"


class Publish(StrEnum):
    """When the staged output of its runs is published."""

    AT_ONCE = "at_once"
    REVIEW = "review"


class CancelCause(StrEnum):
    """Who requested the cancel: a user's ends ``cancelled``, the other ``failed``."""

    USER = "user"
    RUN_FAILURE = "run_failure"


def end_state(*, cancelling: bool, cancel_cause: str | None, any_not_done: bool) -> BackfillState:
    """The end state of a backfill whose runs have all ended.

    A user's cancel ends ``cancelled``; one by ``on_run_failure`` ends ``failed``. Otherwise, one
    run that failed, or was cancelled by itself, makes it ``failed``.
    """
    if cancelling:
        return S.CANCELLED if cancel_cause == CancelCause.USER else S.FAILED
    return S.FAILED if any_not_done else S.SUCCEEDED


def show_command(id: str) -> str:
    """The command that shows a backfill, as a shell takes it."""
    return shlex.join(["retrofill", "backfill", "show", id])
