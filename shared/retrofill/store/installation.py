"""What a service checks in Postgres before it starts: the schema's version, its session's time limits, the installation."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, text

from retrofill.store import tables as t
from retrofill.store.engine import missing_limits


class SchemaTooOld(Exception):
    """The schema is that of an older release: this one works once ``init`` has run."""


class LimitsMissing(Exception):
    """A service's sessions do not have the time limits that they need."""


@dataclass(frozen=True)
class Installation:
    """What was fixed at init."""

    id: str
    topic_prefix: str
    partitions: int


def read_installation(conn: Connection) -> Installation | None:
    """What was fixed at init, or ``None`` before it."""
    c = t.installation.c
    row = conn.execute(select(c.id, c.topic_prefix, c.partitions)).mappings().first()
    return None if row is None else Installation(row["id"], row["topic_prefix"], row["partitions"])


def schema_version(conn: Connection) -> str | None:
    """The version of the schema; versions are texts of the same length, in their order. ``None`` before the first init."""
    table = f"{t.SCHEMA}.alembic_version"
    if conn.execute(text("SELECT to_regclass(:table)"), {"table": table}).scalar() is None:
        return None
    return conn.execute(text(f"SELECT max(version_num) FROM {table}")).scalar()


def check_schema(conn: Connection) -> None:
    """Raises ``SchemaTooOld``. A newer schema is fine: what a release needs is only taken away two releases later."""
    found = schema_version(conn)
    if found is None or found < t.REVISION:
        raise SchemaTooOld(
            f"the schema is of version {found}, this release needs {t.REVISION}: run 'retrofill init' of this release"
        )


def check_limits(conn: Connection) -> None:
    """Raises ``LimitsMissing`` where a transaction of this session could last for ever."""
    if missing := missing_limits(conn):
        raise LimitsMissing(
            f"this connection to Postgres has no {', '.join(missing)}, so a process that stands still would hold its locks for "
            "ever: connect without a pooler that drops 'options', or set it with ALTER ROLE … SET"
        )
