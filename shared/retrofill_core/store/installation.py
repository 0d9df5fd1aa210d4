"""Checks before a service starts: schema version, session limits and installation."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, text

from retrofill_core.store import tables as t
from retrofill_core.store.engine import missing_limits


class SchemaTooOld(Exception):
    """The schema is older than this release needs: ``init`` must run first."""


class LimitsMissing(Exception):
    """Time limits of ``SERVICE_LIMITS`` are not in force in a session."""


@dataclass(frozen=True)
class Installation:
    """Values fixed at init."""

    id: str
    topic_prefix: str
    partitions: int


def read_installation(conn: Connection) -> Installation | None:
    """The installation, or ``None`` before init."""
    c = t.installation.c
    row = conn.execute(select(c.id, c.topic_prefix, c.partitions)).first()
    return None if row is None else Installation(*row)


def schema_version(conn: Connection) -> str | None:
    """The schema's version (fixed-length text, comparable), or ``None`` before the first init."""
    table = f"{t.SCHEMA}.alembic_version"
    if conn.execute(text("SELECT to_regclass(:table)"), {"table": table}).scalar() is None:
        return None
    return conn.execute(text(f"SELECT max(version_num) FROM {table}")).scalar()


def check_schema(conn: Connection) -> None:
    """Raises ``SchemaTooOld``.

    A newer schema works: what a release needs is removed two releases later at the earliest.
    """
    found = schema_version(conn)
    if found is None or found < t.REVISION:
        raise SchemaTooOld(
            f"the schema has version {found}, but this release needs {t.REVISION}: run this release's 'retrofill init'"
        )


def check_limits(conn: Connection) -> None:
    """Raises ``LimitsMissing`` if a stalled transaction of this session would not end."""
    if missing := missing_limits(conn):
        raise LimitsMissing(
            f"this Postgres session has no {', '.join(missing)}, so a stopped process would hold its locks forever: "
            "connect without a pooler that drops 'options', or set them with ALTER ROLE … SET"
        )
