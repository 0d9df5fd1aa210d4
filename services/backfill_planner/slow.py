"""Requests whose plans did not end in the time that Postgres allows a transaction: tried again, but not for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from retrofill.bus.faults import STATEMENT_TIMEOUT, TRANSACTION_TIMEOUT
from retrofill.domain.planning import Reason, Rejection

IDLE_IN_TRANSACTION_TIMEOUT = "25P03"
TIMEOUTS = (STATEMENT_TIMEOUT, TRANSACTION_TIMEOUT, IDLE_IN_TRANSACTION_TIMEOUT)
# The worker loop tries a message alone three times before it makes a dead letter of it: the third time is for the answer.
TRIES = 2
# A smaller plan takes well below a second: it is not to blame where it does not end in time.
LARGE_RUNS = 10_000


class TimedOut:
    """How often each request was planned alone and did not end in time, as far as this instance has seen."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def times(self, id: str) -> int:
        """How often."""
        return self._times[id]

    @contextmanager
    def counted(self, id: str, *, alone: bool) -> Iterator[None]:
        """Count a time-out of what is done inside; one of a batch says nothing of a single request."""
        try:
            yield
        except DBAPIError as e:
            if alone and getattr(e.orig, "sqlstate", None) in TIMEOUTS:
                self._times[id] += 1
            raise
        self._times.pop(id, None)


def too_slow(intervals: int, times: int) -> Rejection | None:
    """The rejection of a large request that did not end in time often enough."""
    if times < TRIES or intervals < LARGE_RUNS:
        return None
    return Rejection(
        Reason.TOO_MANY_RUNS,
        f"{intervals:,} data intervals are too many for this database: {times} times they were not planned within the time that "
        "it allows a transaction (transaction_timeout of the planner's role); split the range into several requests",
    )
