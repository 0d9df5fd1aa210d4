"""Database connections and engines that detect a dead server and limit stalled transactions, and checks before a service starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import TupleRow
from psycopg.types.array import ListBinaryDumper
from sqlalchemy import CompoundSelect, Connection, Engine, Select, create_engine, event, select, text
from sqlalchemy.engine import ExceptionContext

from retrofill_core.store import tables as t
from retrofill_core.store.history import TIMELINE_CHANGED

SAVEPOINTS = ("savepoint", "release_savepoint", "rollback_to_savepoint")
_SESSION = {"search_path": "pg_catalog", "timezone": "UTC"}
# A stopped process must not hold locks: its session ends. The largest plan takes less time.
SERVICE_LIMITS = {
    "idle_in_transaction_session_timeout": "5s",
    "transaction_timeout": "120s",
    # One thread serves all shards of an instance: a lock in one of them must not stop the others.
    "lock_timeout": "1s",
}
# A commit must be acted on only if the standby has it, whatever the login's default; remote_apply waits for more.
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
)


class _Connection(psycopg.Connection[TupleRow]):
    """Keeps its prepared statements when a transaction is rolled back.

    psycopg forgets them in case DDL was undone (docs/decisions/rollbacks-keep-prepared-statements.md).
    """

    def rollback(self) -> None:
        if self.pgconn.transaction_status != TransactionStatus.INTRANS:
            super().rollback()
            return
        with self.lock:
            result = self.pgconn.exec_(b"ROLLBACK")
        if result.status != ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)


def connect(
    dsn: str, name: str, *, autocommit: bool = False, options: str = "", defaults: str = ""
) -> psycopg.Connection:
    """A connection with application name ``name`` that detects a dead server within seconds.

    ``options`` take precedence over the DSN's own, and those over ``defaults``.
    """
    given = str(psycopg.conninfo.conninfo_to_dict(dsn).get("options") or "")
    return _Connection.connect(
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
    """An engine for ``dsn`` (URL or keywords) whose connections have the application name ``name``.

    ``limited`` sets ``SERVICE_LIMITS`` on each session, unless the DSN's ``options`` override them, and waits for
    synchronous standbys at each commit.
    ``check`` raises if a new connection must not be used. The isolation level is READ COMMITTED: a
    statement after a lock sees everything committed before the lock was granted. SQL must qualify
    every name with its schema.
    """

    def made() -> psycopg.Connection:
        conn = connect(dsn, name, options=_flags(_SESSION), defaults=_flags(SERVICE_LIMITS if limited else {}))
        # Sends text and bytes arrays in binary: quoting each element takes a hundred times as long.
        conn.adapters.register_dumper(list, ListBinaryDumper)
        try:
            if limited:
                conn.execute(_DURABLE)
                conn.commit()
            check(conn)
        except BaseException:
            conn.close()
            raise
        return conn

    engine = create_engine(
        "postgresql+psycopg://", creator=made, pool_size=pool_size, max_overflow=2, pool_timeout=10, future=True
    )
    event.listen(engine, "before_execute", count_write)
    event.listen(engine, "handle_error", _leave_other_server)
    return engine


def _leave_other_server(context: ExceptionContext) -> None:
    """Connect again, and so check again, where the session has another server than the one that was checked."""
    if getattr(context.original_exception, "sqlstate", None) == TIMELINE_CHANGED:
        context.is_disconnect = True


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection for single queries: without BEGIN and ROLLBACK, two of the three round trips."""
    with engine.connect() as conn:
        yield conn.execution_options(isolation_level="AUTOCOMMIT")


def count_write(conn: Connection, statement: object, *_: object) -> None:
    """Count what is neither a plain query nor a savepoint, for ``writes``."""
    if (
        not isinstance(statement, Select | CompoundSelect)
        and getattr(statement, "__visit_name__", "") not in SAVEPOINTS
    ):
        conn.info["writes"] = writes(conn) + 1


def writes(conn: Connection) -> int:
    """Number of statements on this connection that may have written. Row locks do not count."""
    return int(conn.info.get("writes", 0))


def _flags(settings: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def missing_limits(conn: Connection) -> list[str]:
    """Names of ``SERVICE_LIMITS`` that are not in force in this session: a pooler may drop startup options."""
    return [
        name
        for name in SERVICE_LIMITS
        if conn.execute(text("SELECT current_setting(:name)"), {"name": name}).scalar_one() == "0"
    ]


class SchemaTooOld(Exception):
    """The schema is older than this release needs: ``init`` must run first."""


class LimitsMissing(Exception):
    """Time limits of ``SERVICE_LIMITS`` are not in force in a session."""


@dataclass(frozen=True, slots=True)
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
