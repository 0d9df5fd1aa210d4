"""The database's clock, the only one decisions use."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, select


def database_now(conn: Connection) -> datetime:
    """The time of this statement, not of its transaction, in UTC."""
    now: datetime = conn.execute(select(func.clock_timestamp())).scalar_one()
    return now
