"""What a failure means: a fence, a conflict to decide again, poison, or a dependency to wait for."""

from __future__ import annotations

from enum import Enum

from confluent_kafka import KafkaException
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted

UNIQUE_VIOLATION = "23505"
EXCLUSION_VIOLATION = "23P01"
DEADLOCK = "40P01"
SERIALIZATION_FAILURE = "40001"
LOCK_TIMEOUT = "55P03"
STATEMENT_TIMEOUT = "57014"
TRANSACTION_TIMEOUT = "25P04"
IDLE_IN_TRANSACTION = "25P03"


class Fenced(Exception):
    """Another owner has the shard: nothing of this transaction may land."""


class Conflict(Exception):
    """A guarded update did not land or a lock was lost: roll back, read again, decide again."""


class Poison(Exception):
    """A message that can never be handled; the text is the reason on its dead letter."""


class Fault(Enum):
    """What to do about an exception."""

    FENCED = "fenced"  # stop working on the shard until the coordinator says that it is ours
    CONFLICT = "conflict"  # decide again
    TIMEOUT = "timeout"  # decide again, but not for ever: the database answers, this work does not end in time
    POISON = "poison"  # the data itself
    WAIT = "wait"  # a dependency is down


def classify(error: BaseException) -> Fault:
    """What ``error``, raised while a batch was handled, means (docs/how-it-works.md)."""
    if isinstance(error, Fenced):
        return Fault.FENCED
    if isinstance(error, Conflict):
        return Fault.CONFLICT
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None)
        if state is None and isinstance(error, DataError):
            # Refused by the driver before it was sent: text with a NUL character.
            return Fault.POISON
        return _classify_state(state, disconnected=error.connection_invalidated)
    if isinstance(error, KafkaException | OSError | TimeoutError | PoolExhausted):
        return Fault.WAIT
    # Anything else was raised by our own decision code: the same message would raise it again.
    return Fault.POISON


def _classify_state(state: str | None, *, disconnected: bool) -> Fault:
    if state == LOCK_TIMEOUT:
        # Somebody else's transaction is in the way: that says nothing against the message, however long it lasts.
        return Fault.WAIT
    if state in (STATEMENT_TIMEOUT, TRANSACTION_TIMEOUT, IDLE_IN_TRANSACTION):
        # The last two end the connection too, and still are about this work: a handler that computes for longer than a
        # transaction may be idle finds out with its next statement.
        return Fault.TIMEOUT
    if state is None or disconnected:
        return Fault.WAIT
    if state in (UNIQUE_VIOLATION, EXCLUSION_VIOLATION, DEADLOCK, SERIALIZATION_FAILURE):
        return Fault.CONFLICT
    if state[:2] in ("22", "54", "23"):
        return Fault.POISON
    return Fault.WAIT
