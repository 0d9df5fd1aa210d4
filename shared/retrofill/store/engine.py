"""Engines: one DSN each, durable commits, and connections that notice when the server is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psycopg
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import Connection, Engine, create_engine, text

_SESSION = {"search_path": "pg_catalog", "timezone": "UTC"}
# A stopped process must not hold locks: its session ends. They are longer than the largest allowed plan takes.
SERVICE_LIMITS = {
    "idle_in_transaction_session_timeout": "5s",
    "transaction_timeout": "120s",
    # One thread works on all shards of an instance: what somebody else holds in one of them must not stop the others.
    "lock_timeout": "1s",
}


def connect(
    dsn: str, name: str, *, autocommit: bool = False, options: str = "", defaults: str = ""
) -> psycopg.Connection:
    """A connection called ``name`` that notices within seconds when the server is gone.

    ``options`` win over the DSN's own, and those over ``defaults``.
    """
    given = str(psycopg.conninfo.conninfo_to_dict(dsn).get("options") or "")
    return psycopg.connect(
        dsn,
        autocommit=autocommit,
        application_name=name,
        connect_timeout=5,
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=3,
        tcp_user_timeout=10_000,
        options=f"{defaults} {given} {options}".strip(),
    )


def make_engine(
    dsn: str,
    name: str,
    *,
    pool_size: int = 5,
    limited: bool = False,
    check: Callable[[psycopg.Connection], None] = lambda _: None,
) -> Engine:
    """An engine on ``dsn`` (URL or keywords) whose connections are called ``name``.

    Every name in our SQL has its schema.

    ``limited``: a service's, whose transactions end where it stands still, also where its role has no such settings; the
    DSN's ``options`` may say otherwise.
    ``check`` raises where a new connection must not be used.

    READ COMMITTED: every statement after a lock sees what was committed before the lock was had.
    """

    def made() -> psycopg.Connection:
        conn = connect(dsn, name, options=_flags(_SESSION), defaults=_flags(SERVICE_LIMITS if limited else {}))
        # Arrays of texts and bytes go as they are: to quote them element by element takes a hundred times as long.
        conn.adapters.register_dumper(list, ListBinaryDumper)
        try:
            check(conn)
        except BaseException:
            conn.close()
            raise
        return conn

    return create_engine(
        "postgresql+psycopg://", creator=made, pool_size=pool_size, max_overflow=2, pool_timeout=10, future=True
    )


def _flags(settings: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def missing_limits(conn: Connection) -> list[str]:
    """Which of ``SERVICE_LIMITS`` this session has not at all: a pooler may drop what was asked for on connecting."""
    return [
        name
        for name in SERVICE_LIMITS
        if conn.execute(text("SELECT current_setting(:name)"), {"name": name}).scalar_one() == "0"
    ]
