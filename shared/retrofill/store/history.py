"""Which Postgres this is, and at which point of its history: one that lost commits must not be worked on as if it had not."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from sqlalchemy import Connection, text

# A timeline begins with each promotion and each point-in-time restore. The name of the WAL file that is written shows it at once,
# ``pg_control_checkpoint()`` only after the next checkpoint. Both are open to plain roles.
_HERE = (
    "(pg_control_system()).system_identifier::text, "
    "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int"
)
_RECORDED = "SELECT system_identifier, timeline FROM retrofill.installation"
# What an older schema, or a Postgres that keeps this to itself, answers.
_UNKNOWN = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.FeatureNotSupported,
)
WHAT_TO_DO = "commits may be lost. Stop the services, find out what happened, then type 'retrofill recover'"


class PostgresWentBack(psycopg.OperationalError):
    """Postgres may have lost commits that others have seen. Nothing is done until somebody typed ``retrofill recover``.

    An error of the connection, so that whoever asked for one has none.
    """


@dataclass(frozen=True)
class History:
    """A Postgres (clusters of their own differ in the identifier) and a line of its history."""

    system_identifier: str
    timeline: int


def read_history(conn: Connection) -> History | None:
    """Of this server; ``None`` where it does not say. A refusal leaves the transaction as it was."""
    try:
        with conn.begin_nested():
            row = conn.execute(text(f"SELECT {_HERE}")).one()
    except Exception as e:
        if isinstance(getattr(e, "orig", None), _UNKNOWN):
            return None
        raise
    return History(*row)


def check_history(conn: psycopg.Connection) -> None:
    """Of a new connection: whether it is to the Postgres, and the timeline, that were recorded. Raises ``PostgresWentBack``."""
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
        raise PostgresWentBack(f"this is another Postgres than the one that was recorded: {WHAT_TO_DO}")
    if recorded[1] != here[1]:
        raise PostgresWentBack(
            f"Postgres is on timeline {here[1]}, it was on {recorded[1]}: it was restored, or another server took over; "
            f"{WHAT_TO_DO}"
        )
