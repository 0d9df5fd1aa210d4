"""A callback: what is called when a deadline is missed."""

from __future__ import annotations

from enum import StrEnum

from retrofill.domain.machine import machine


class CallbackState(StrEnum):
    """States of a callback."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


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
