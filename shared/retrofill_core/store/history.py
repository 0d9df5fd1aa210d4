"""Identity and timeline of the Postgres server, generations, which each new timeline begins, and the relays' positions.

Epochs and ids of a generation start at its number times ``SPAN``. So what a lost commit of an
earlier timeline has given out is never given out again
(``docs/decisions/postgres-went-back.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql
from sqlalchemy import Connection, select, text

from retrofill_core.contract.topics import SERVICES
from retrofill_core.store.tables import SCHEMA, SERVICE_TABLES

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
SPAN = 1_000_000_000
# Of retrofill.check_timeline(): another server answers in a session that was checked.
TIMELINE_CHANGED = "RF001"
# Kafka is asked within the transaction that begins a generation.
_PATIENCE = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
WHAT_TO_DO = "commits may be lost. Stop the services, find out what happened, then run 'retrofill recover'"


class PostgresWentBack(psycopg.OperationalError):
    """Postgres may have lost published commits.

    No service works until ``retrofill recover`` has run.

    Raised while connecting, so there is no connection to use.
    """


@dataclass(frozen=True, slots=True)
class Timeline:
    """A Postgres cluster, by its system identifier, and its timeline."""

    system_identifier: str
    timeline: int


def generation_of(number: int) -> int:
    """The generation of an epoch or id."""
    return number // SPAN


def read_history(conn: Connection) -> Timeline | None:
    """The server's history, or ``None`` if it does not report it. The transaction stays usable."""
    try:
        with conn.begin_nested():
            row = conn.execute(text(f"SELECT {_HERE}")).one()
    except Exception as e:
        if isinstance(getattr(e, "orig", None), _UNKNOWN):
            return None
        raise
    return Timeline(*row)


def is_recorded(conn: Connection) -> bool:
    """Whether the recorded server answers, also where this is unknown. The transaction stays usable."""
    here = read_history(conn)
    recorded = conn.execute(text(_RECORDED)).one()
    return here is None or recorded.system_identifier is None or Timeline(*recorded) == here


def compare_history(conn: psycopg.Connection) -> tuple[Timeline, Timeline] | None:
    """The recorded history and the server's own, ``None`` where either is unknown. Ends the transaction."""
    try:
        recorded = conn.execute(_RECORDED).fetchone()
        here = conn.execute(f"SELECT {_HERE}").fetchone()
    except _UNKNOWN:
        return None
    finally:
        conn.rollback()
    if recorded is None or here is None or recorded[0] is None:
        return None
    return Timeline(*recorded), Timeline(*here)


def lock_generation(conn: psycopg.Connection) -> bool:
    """Begin a transaction that may begin a generation; whether nobody else has begun it meanwhile."""
    conn.execute(_PATIENCE)
    conn.execute("SELECT pg_advisory_xact_lock(hashtext('retrofill.generation'))")
    recorded = conn.execute(_RECORDED).fetchone()
    here = conn.execute(f"SELECT {_HERE}").fetchone()
    return recorded != here


def begin_generation(conn: psycopg.Connection, generation: int) -> None:
    """Move epochs and ids to ``generation``, and record the timeline. The caller commits."""
    conn.execute("SELECT retrofill.begin_generation(%s)", [generation])


@dataclass(frozen=True, slots=True)
class RelayRow:
    """A relay's epoch and the number of its last batch."""

    epoch: int
    batch: int


def relays(conn: Connection) -> dict[str, RelayRow]:
    """Relays by service name."""
    found = {}
    for name, service in SERVICES.items():
        relay = SERVICE_TABLES[service.package].relay
        row = conn.execute(select(relay.c.epoch, relay.c.batch)).one()
        found[name] = RelayRow(row.epoch, row.batch)
    return found


def read_relays(conn: psycopg.Connection) -> dict[str, RelayRow]:
    """The same on a connection that no engine has yet."""
    found = {}
    for name, service in SERVICES.items():
        table = sql.Identifier(SCHEMA, SERVICE_TABLES[service.package].relay.name)
        row = conn.execute(sql.SQL("SELECT epoch, batch FROM {}").format(table)).fetchone()
        assert row is not None, "init inserts it"
        found[name] = RelayRow(*row)
    return found
