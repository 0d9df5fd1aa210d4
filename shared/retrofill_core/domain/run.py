"""A run: one data interval of one backfill, to be executed once successfully."""

from __future__ import annotations

from enum import StrEnum

from retrofill.states import machine


class RunState(StrEnum):
    """States of a run."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STAGED = "staged"
    PUBLISHING = "publishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


S = RunState
MACHINE = machine(
    "run",
    {
        S.QUEUED: (S.STARTING, S.CANCELLED),
        S.STARTING: (S.RUNNING, S.SUCCEEDED, S.FAILED, S.QUEUED, S.CANCELLED),
        S.RUNNING: (S.SUCCEEDED, S.FAILED, S.PUBLISHING, S.STAGED, S.QUEUED, S.CANCELLED),
        S.PUBLISHING: (S.SUCCEEDED, S.FAILED, S.STAGED),
        S.STAGED: (S.PUBLISHING, S.CANCELLED),
        S.SUCCEEDED: (),
        S.FAILED: (),
        S.CANCELLED: (),
    },
)

# A live run is part of a live attempt. A staged one was accepted and waits for a publisher, or for a
# review.
LIVE = (S.STARTING, S.RUNNING, S.PUBLISHING)
# Its output was not accepted yet.
CANCELLABLE = (S.QUEUED, S.STARTING, S.RUNNING)
GOING = (*LIVE, S.STAGED)
UNFINISHED = (S.QUEUED, *GOING)
