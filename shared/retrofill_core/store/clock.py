"""The database's clock, the only one decisions use."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, select

_NOW = select(func.clock_timestamp())


def database_now(conn: Connection) -> datetime:
    """The time of this statement, not of its transaction, in UTC."""
    now: datetime = conn.execute(_NOW).scalar_one()
    return now
