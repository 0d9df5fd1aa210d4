"""Converts times of the database clock, which may jump, to true time."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import TYPE_CHECKING

from tests.simulation.memory.engine import EPOCH

if TYPE_CHECKING:
    from tests.simulation.memory.engine import Database

# The database stores microseconds.
ROUNDED = 0.00001


def ended_early(database: Database, lease_until: datetime, lease_seconds: float) -> bool:
    """Whether the lease is over by the database clock only, because that clock jumped."""
    given_at = _true_time(database, (lease_until - EPOCH).total_seconds() - lease_seconds)
    return database.turns.now < given_at + lease_seconds - ROUNDED


def _true_time(database: Database, seconds: float) -> float:
    """The true time at which the database clock showed ``seconds``.

    For a time that the clock skipped, the time of the jump.
    """
    until = inf
    for at, offset in reversed(database.jumps):
        if seconds >= at + offset - ROUNDED:
            return min(seconds - offset, until)
        until = at
    return until
