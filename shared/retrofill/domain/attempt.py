"""An attempt: one driver's execution of one or several runs of a backfill."""

from __future__ import annotations

from enum import StrEnum

from retrofill.domain.machine import machine


class AttemptState(StrEnum):
    """States of an attempt. It is live until it ended, and then holds no slot."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class AttemptMode(StrEnum):
    """What a driver does with the runs of an attempt."""

    EACH = "each"
    PUBLISH = "publish"


class AttemptOutcome(StrEnum):
    """How an attempt ended.

    ``done``: its driver reported the end; ``released``: stopped without being at fault.
    """

    DONE = "done"
    LOST = "lost"
    RELEASED = "released"
    CANCELLED = "cancelled"


S = AttemptState
MACHINE = machine(
    "attempt",
    {
        S.STARTING: (S.RUNNING, S.ENDED),
        S.RUNNING: (S.ENDED,),
        S.ENDED: (),
    },
)
# A live attempt holds a slot of its backfill and one of its pipeline.
LIVE = (S.STARTING, S.RUNNING)
