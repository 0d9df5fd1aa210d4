"""A backfill: one request to process a range of data intervals of one pipeline."""

from __future__ import annotations

from enum import StrEnum

from retrofill.domain.machine import machine


class BackfillState(StrEnum):
    """States of a backfill."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


S = BackfillState
MACHINE = machine(
    "backfill",
    {
        S.RUNNING: (S.PAUSED, S.CANCELLING, S.SUCCEEDED, S.FAILED),
        S.PAUSED: (S.RUNNING, S.CANCELLING, S.SUCCEEDED, S.FAILED),
        S.CANCELLING: (S.CANCELLED, S.FAILED),
        S.CANCELLED: (),
        S.SUCCEEDED: (),
        S.FAILED: (),
    },
)

# The exclusion constraint's: two of these never share a data interval of one pipeline.
ACTIVE = (S.RUNNING, S.PAUSED, S.CANCELLING)


class ReprocessBehavior(StrEnum):
    """Which intervals that already have a finished run are run again."""

    NONE = "none"
    FAILED = "failed"
    COMPLETED = "completed"


class OnRunFailure(StrEnum):
    """What becomes of a backfill when one of its runs failed for good."""

    CONTINUE = "continue"
    PAUSE = "pause"
    CANCEL = "cancel"


class CancelCause(StrEnum):
    """Who asked for the cancel: it decides whether the end is ``cancelled`` or ``failed``."""

    USER = "user"
    RUN_FAILURE = "run_failure"


def end_state(*, cancelling: bool, cancel_cause: str | None, any_failed: bool) -> BackfillState:
    """The state in which a backfill ends whose runs have all ended.

    A cancel by a user ends ``cancelled``; a cancel by ``on_run_failure`` ends ``failed``; otherwise one run that failed
    for good makes it ``failed``.
    """
    if cancelling:
        return S.CANCELLED if cancel_cause == CancelCause.USER else S.FAILED
    return S.FAILED if any_failed else S.SUCCEEDED
