"""The database's clock: the only one that counts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, select


def database_now(conn: Connection) -> datetime:
    """The moment of this statement, also inside a transaction (UTC)."""
    now: datetime = conn.execute(select(func.clock_timestamp())).scalar_one()
    return now
