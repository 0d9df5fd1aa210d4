"""Classifies failures: a fence, a conflict to retry, poison, or an unavailable dependency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from confluent_kafka import KafkaException
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from retrofill.errors import kind_and_line

UNIQUE_VIOLATION = "23505"
EXCLUSION_VIOLATION = "23P01"
DEADLOCK = "40P01"
SERIALIZATION_FAILURE = "40001"
LOCK_TIMEOUT = "55P03"
STATEMENT_TIMEOUT = "57014"
TRANSACTION_TIMEOUT = "25P04"
IDLE_IN_TRANSACTION = "25P03"


class Fenced(Exception):
    """The shard or relay has a newer owner: this transaction must not commit."""


class Conflict(Exception):
    """A guarded update did not take effect or a lock was lost: roll back and decide again."""


class Poison(Exception):
    """The message can never be handled; the text becomes the reason on its dead letter."""


class Locked(Exception):
    """Another transaction holds a row that a message or a check needs; the text is Postgres's."""


class Fault(Enum):
    """The class of an exception, and what follows from it."""

    FENCED = "fenced"  # stop working on the shard until the coordinator confirms that it is ours
    CONFLICT = "conflict"  # roll back and decide again
    TIMEOUT = "timeout"  # like a conflict, with limited retries: the database answers, this work takes too long
    POISON = "poison"  # the data is at fault: dead-letter it
    LOCKED = "locked"  # another transaction holds a row: hold what needs it, not the shard
    WAIT = "wait"  # a dependency is down, or a lock that the whole shard needs is held: back off


def classify(error: BaseException) -> Fault:
    """Classify ``error``, raised while a batch was handled (docs/how-it-works.md)."""
    if isinstance(error, Fenced):
        return Fault.FENCED
    if isinstance(error, Conflict):
        return Fault.CONFLICT
    if isinstance(error, Locked):
        return Fault.LOCKED
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None)
        if state is None and isinstance(error, DataError):
            # The driver refused to send it: text with a NUL character.
            return Fault.POISON
        return _classify_state(state, disconnected=error.connection_invalidated)
    if isinstance(error, KafkaException | OSError | TimeoutError | PoolExhausted):
        return Fault.WAIT
    # Anything else comes from our own decision code: the same message would raise it again.
    return Fault.POISON


@contextmanager
def needing_rows() -> Iterator[None]:
    """Around a handler's decisions: raises ``Locked`` for a lock awaited for ``lock_timeout``.

    Outside, such a lock is one that all of the shard's work needs.
    """
    try:
        yield
    except DBAPIError as e:
        if getattr(e.orig, "sqlstate", None) == LOCK_TIMEOUT:
            raise Locked(kind_and_line(e)) from e
        raise


def _classify_state(state: str | None, *, disconnected: bool) -> Fault:
    if state == LOCK_TIMEOUT:
        # Another transaction holds the lock; nothing of ours is at fault, however long it takes.
        return Fault.WAIT
    if state in (STATEMENT_TIMEOUT, TRANSACTION_TIMEOUT, IDLE_IN_TRANSACTION):
        # The last two also close the connection, yet this work is at fault: a handler that computes
        # for longer than a transaction may be idle fails at its next statement.
        return Fault.TIMEOUT
    if state is None or disconnected:
        return Fault.WAIT
    if state in (UNIQUE_VIOLATION, EXCLUSION_VIOLATION, DEADLOCK, SERIALIZATION_FAILURE):
        return Fault.CONFLICT
    if state[:2] in ("22", "54", "23"):
        return Fault.POISON
    return Fault.WAIT
