"""Engines: one DSN each, durable commits, and connections that notice when the server is gone."""

from __future__ import annotations

import psycopg
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import Engine, create_engine


def make_engine(dsn: str, name: str, *, pool_size: int = 5) -> Engine:
    """An engine on ``dsn`` (URL or keywords) whose connections are called ``name``.

    Every name in our SQL has its schema.

    READ COMMITTED: every statement after a lock sees what was committed before the lock was had.
    """

    def connect() -> psycopg.Connection:
        conn = psycopg.connect(
            dsn,
            application_name=name,
            connect_timeout=5,
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=10_000,
            options="-c search_path=pg_catalog -c timezone=UTC",
        )
        # Arrays of texts and bytes go as they are: to quote them element by element takes a hundred times as long.
        conn.adapters.register_dumper(list, ListBinaryDumper)
        return conn

    return create_engine(
        "postgresql+psycopg://", creator=connect, pool_size=pool_size, max_overflow=2, pool_timeout=10, future=True
    )
