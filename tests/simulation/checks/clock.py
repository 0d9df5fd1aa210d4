"""The true moments of what the database's clock says, which may jump: whether a lease was over by the true time."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import TYPE_CHECKING

from tests.simulation.memory.engine import EPOCH

if TYPE_CHECKING:
    from tests.simulation.memory.engine import Database

# The database keeps microseconds.
ROUNDED = 0.00001


def ended_early(database: Database, lease_until: datetime, lease_seconds: float) -> bool:
    """Whether a lease of so many seconds that is over by the database's clock is not by the true time: the clock jumped."""
    given_at = _true_time(database, (lease_until - EPOCH).total_seconds() - lease_seconds)
    return database.turns.now < given_at + lease_seconds - ROUNDED


def _true_time(database: Database, seconds: float) -> float:
    """When the database's clock said so; for a moment that it jumped over, when it jumped."""
    until = inf
    for at, offset in reversed(database.jumps):
        if seconds >= at + offset - ROUNDED:
            return min(seconds - offset, until)
        until = at
    return until
