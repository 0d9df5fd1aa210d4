"""The server's errors, as SQLAlchemy wraps those of psycopg."""

from __future__ import annotations

import psycopg.errors as pg
from sqlalchemy import exc


def integrity(kind: type[pg.IntegrityError], message: str) -> exc.IntegrityError:
    return exc.IntegrityError(message, None, kind(message))


def unique(name: str) -> exc.IntegrityError:
    """SQLSTATE 23505."""
    return integrity(pg.UniqueViolation, f'duplicate key value violates unique constraint "{name}"')


def exclusion(name: str) -> exc.IntegrityError:
    """SQLSTATE 23P01."""
    return integrity(pg.ExclusionViolation, f'conflicting key value violates exclusion constraint "{name}"')


def deadlock() -> exc.OperationalError:
    """SQLSTATE 40P01."""
    return exc.OperationalError("deadlock detected", None, pg.DeadlockDetected("deadlock detected"))


def lock_timeout() -> exc.OperationalError:
    """SQLSTATE 55P03."""
    text = "canceling statement due to lock timeout"
    return exc.OperationalError(text, None, pg.LockNotAvailable(text))


def transaction_timeout() -> exc.OperationalError:
    """SQLSTATE 25P04: the server ended the session with the transaction."""
    text = "terminating connection due to transaction timeout"
    return exc.OperationalError(text, None, pg.TransactionTimeout(text), connection_invalidated=True)


def failed_transaction() -> exc.InternalError:
    """SQLSTATE 25P02: an earlier statement of the transaction failed."""
    text = "current transaction is aborted, commands ignored until end of transaction block"
    return exc.InternalError(text, None, pg.InFailedSqlTransaction(text))


def disconnected(reason: str) -> exc.OperationalError:
    """The connection was lost. The last statement may or may not have taken effect."""
    error = pg.OperationalError(f"consuming input failed: {reason}")
    return exc.OperationalError(reason, None, error, connection_invalidated=True)
