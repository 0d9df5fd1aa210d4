"""Requests whose planning exceeds Postgres's transaction timeout: retried, then rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from retrofill_core.bus.faults import STATEMENT_TIMEOUT, TRANSACTION_TIMEOUT
from retrofill_core.domain.planning import Reason, Rejection

IDLE_IN_TRANSACTION_TIMEOUT = "25P03"
TIMEOUTS = (STATEMENT_TIMEOUT, TRANSACTION_TIMEOUT, IDLE_IN_TRANSACTION_TIMEOUT)
# The worker loop dead-letters a message after three tries alone: the third rejects the request.
TRIES = 2
# A smaller plan takes well below a second, so its timeout has another cause.
LARGE_RUNS = 10_000


class TimedOut:
    """Counts, per request, the timeouts of planning it alone on this instance."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def times(self, id: str) -> int:
        return self._times[id]

    @contextmanager
    def counted(self, id: str, *, alone: bool) -> Iterator[None]:
        """Count a timeout inside the block; that of a batch blames no single request."""
        try:
            yield
        except DBAPIError as e:
            if alone and getattr(e.orig, "sqlstate", None) in TIMEOUTS:
                self._times[id] += 1
            raise
        self._times.pop(id, None)


def too_slow(intervals: int, times: int) -> Rejection | None:
    """Reject a large request after ``TRIES`` timeouts."""
    if times < TRIES or intervals < LARGE_RUNS:
        return None
    return Rejection(
        Reason.TOO_MANY_RUNS,
        f"{intervals:,} data intervals are too many for this database: planning exceeded its transaction timeout {times} times "
        "(transaction_timeout of the planner's role); split the range into several requests",
    )
