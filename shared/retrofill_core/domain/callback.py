"""A callback: what is called when a deadline is missed, a run fails or a backfill ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from retrofill.states import machine


class CallbackState(StrEnum):
    """States of a callback."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DROPPED = "dropped"


class Occasion(StrEnum):
    """What a callback that a pipeline lists is called for. Those of deadlines have none."""

    RUN_FAILED = "run_failed"
    BACKFILL_SUCCEEDED = "backfill_succeeded"
    BACKFILL_FAILED = "backfill_failed"


S = CallbackState
MACHINE = machine(
    "callback",
    {
        # Dropped: it was not delivered, and its subject no longer matters.
        S.PENDING: (S.RUNNING, S.DROPPED),
        S.RUNNING: (S.SUCCEEDED, S.FAILED, S.PENDING),
        S.SUCCEEDED: (),
        # By a requested replay. A callback that succeeded is never called again.
        S.FAILED: (S.PENDING,),
        S.DROPPED: (),
    },
)
# A failed callback can be replayed, so these are not just the terminal states.
ENDED = (S.SUCCEEDED, S.FAILED, S.DROPPED)


def order_key(kind: str, name: str, options: Mapping[str, Any], backfill_id: str) -> str:
    """What a receiver's callbacks about one backfill share: they are called one after the other."""
    about = json.dumps([kind, name, options.get("routing_key"), backfill_id])
    return hashlib.sha256(about.encode()).hexdigest()[:32]
