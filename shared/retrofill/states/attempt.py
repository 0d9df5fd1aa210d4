"""An attempt: one driver's execution of one or several runs of a backfill."""

from __future__ import annotations

from retrofill.states.machine import machine
from retrofill.text_enum import StrEnum


class AttemptState(StrEnum):
    """States of an attempt. It is live until it ended, and then holds no slot."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class AttemptMode(StrEnum):
    """What a driver does with the runs of an attempt.

    ``each``: one after the other; ``range``: all in one go, as one interval; ``publish``: only what
    they staged before.
    """

    EACH = "each"
    RANGE = "range"
    PUBLISH = "publish"


class AttemptOutcome(StrEnum):
    """How an attempt ended.

    ``done``: its driver reported the end; ``failed``: so it did, but a range failed as a whole;
    ``released``: stopped without being at fault.
    """

    DONE = "done"
    FAILED = "failed"
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
# A range of at most this many that failed is not divided further: its runs are tried one by one.
LAST_RANGE = 12
# Modes that run user code.
EXECUTES = (AttemptMode.EACH, AttemptMode.RANGE)
