"""A callback: what is called when a deadline is missed, a run fails or a backfill ends."""

from __future__ import annotations

from enum import StrEnum

from retrofill.states.machine import machine


class CallbackState(StrEnum):
    """States of a callback."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Occasion(StrEnum):
    """What a callback that a pipeline lists is called for. Those of deadlines have none."""

    RUN_FAILED = "run_failed"
    BACKFILL_SUCCEEDED = "backfill_succeeded"
    BACKFILL_FAILED = "backfill_failed"


S = CallbackState
MACHINE = machine(
    "callback",
    {
        S.PENDING: (S.RUNNING,),
        S.RUNNING: (S.SUCCEEDED, S.FAILED, S.PENDING),
        S.SUCCEEDED: (),
        # By a requested replay. A callback that succeeded is never called again.
        S.FAILED: (S.PENDING,),
    },
)
# A failed callback can be replayed, so these are not just the terminal states.
ENDED = (S.SUCCEEDED, S.FAILED)
