"""Identity and timeline of the Postgres server, to detect one that may have lost commits."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, text

# Each promotion and each point-in-time restore begins a timeline. The name of the current WAL file
# shows it at once, pg_control_checkpoint() only after the next checkpoint. Any role reads both.
_HERE = (
    "(pg_control_system()).system_identifier::text, "
    "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int"
)
_RECORDED = "SELECT system_identifier, timeline FROM retrofill.installation"
# Errors of an older schema, or of a Postgres that does not report these.
_UNKNOWN = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.FeatureNotSupported,
)
WHAT_TO_DO = "commits may be lost. Stop the services, find out what happened, then run 'retrofill recover'"


class PostgresWentBack(psycopg.OperationalError):
    """Postgres may have lost published commits.

    No service works until ``retrofill recover`` has run.

    Raised while connecting, so there is no connection to use.
    """


@dataclass(frozen=True, slots=True)
class History:
    """A Postgres cluster, by its system identifier, and its timeline."""

    system_identifier: str
    timeline: int


def read_history(conn: Connection) -> History | None:
    """The server's history, or ``None`` if it does not report it. The transaction stays usable."""
    try:
        with conn.begin_nested():
            row = conn.execute(text(f"SELECT {_HERE}")).one()
    except Exception as e:
        if isinstance(getattr(e, "orig", None), _UNKNOWN):
            return None
        raise
    return History(*row)


def check_history(conn: psycopg.Connection) -> None:
    """Compare a new connection with the recorded history. Raises ``PostgresWentBack``."""
    try:
        recorded = conn.execute(_RECORDED).fetchone()
        here = conn.execute(f"SELECT {_HERE}").fetchone()
    except _UNKNOWN:
        return
    finally:
        conn.rollback()
    if recorded is None or here is None or recorded[0] is None:
        return
    if recorded[0] != here[0]:
        raise PostgresWentBack(f"this is not the recorded Postgres: {WHAT_TO_DO}")
    if recorded[1] != here[1]:
        raise PostgresWentBack(
            f"Postgres is on timeline {here[1]}, but {recorded[1]} is recorded: it was restored or failed over; "
            f"{WHAT_TO_DO}"
        )
