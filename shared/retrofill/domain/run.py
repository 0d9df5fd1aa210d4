"""A run: one data interval of one backfill, to be executed once successfully."""

from __future__ import annotations

from enum import StrEnum

from retrofill.domain.machine import machine


class RunState(StrEnum):
    """States of a run."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
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
        S.RUNNING: (S.SUCCEEDED, S.FAILED, S.PUBLISHING, S.QUEUED, S.CANCELLED),
        S.PUBLISHING: (S.SUCCEEDED, S.FAILED),
        S.SUCCEEDED: (),
        S.FAILED: (),
        S.CANCELLED: (),
    },
)

# A live run holds a slot of its backfill and one of its pipeline.
LIVE = (S.STARTING, S.RUNNING, S.PUBLISHING)
UNFINISHED = (S.QUEUED, *LIVE)


def after_loss(*, cancel_requested: bool, lost_attempts: int, max_lost_attempts: int) -> RunState:
    """The state of a run after its driver was lost; ``lost_attempts`` includes this loss."""
    if cancel_requested:
        return S.CANCELLED
    return S.FAILED if lost_attempts >= max_lost_attempts else S.QUEUED
