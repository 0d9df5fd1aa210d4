"""Permissions to write, as grants: one Postgres role per service (docs/how-it-works.md)."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import sql
from sqlalchemy import Connection, text

from retrofill_core.contract.topics import CALLBACK_RUNNER, PLANNER, RUN_STARTER, SERVICES, WATCHER, Service
from retrofill_core.store.engine import SERVICE_LIMITS
from retrofill_core.store.tables import SCHEMA, SERVICE_TABLES

READER = "retrofill_reader"
OF_TABLES = ("INSERT", "UPDATE", "DELETE")

# Service → table → rights beyond reading; "lock" is the right to lock another's rows, and a column
# the right to change only that one.
WRITES: dict[str, dict[str, tuple[str, ...]]] = {
    PLANNER.name: {
        "pipeline": ("INSERT", "UPDATE"),
        "pipeline_copy": ("INSERT", "DELETE"),
        "backfill": ("INSERT", "UPDATE"),
        "backfill_request": ("INSERT",),
        "backfill_command": ("INSERT",),
        "backfill_interval": ("INSERT",),
        "backfill_progress": ("INSERT", "UPDATE"),
        "run": ("INSERT", "lock", "superseded_by", "review"),
        "run_cancel": ("INSERT",),
        "deadline": ("INSERT",),
        "callback": ("INSERT",),
    },
    RUN_STARTER.name: {
        "pipeline": ("lock",),
        "backfill": ("lock",),
        "attempt": ("INSERT", "UPDATE"),
        "host": ("INSERT", "UPDATE", "DELETE"),
        "seat": ("INSERT", "UPDATE", "DELETE"),
        "seat_wait": ("INSERT", "UPDATE", "DELETE"),
        "write_lock": ("INSERT", "UPDATE"),
        "write_wait": ("INSERT", "UPDATE", "DELETE"),
        "run": ("UPDATE",),
        "task_run": ("INSERT", "UPDATE"),
        "deadline": ("INSERT",),
        "callback": ("INSERT", "lock"),
        "callback_run": ("INSERT",),
        "table_place": ("INSERT", "UPDATE"),
    },
    WATCHER.name: {
        "backfill": ("lock",),
        "run": ("lock",),
        "deadline": ("UPDATE",),
        "deadline_digest": ("INSERT", "UPDATE"),
        "callback": ("INSERT",),
    },
    CALLBACK_RUNNER.name: {
        "callback": ("UPDATE",),
        "receiver": ("INSERT", "UPDATE", "DELETE"),
        "webhook_off": ("INSERT", "DELETE"),
    },
}


def bus_rights(service: Service) -> dict[str, tuple[str, ...]]:
    """A service's rights on its own bus tables. Init inserts the rows of shards and relay."""
    own = SERVICE_TABLES[service.package]
    return {
        own.shard.name: ("UPDATE",),
        own.offset.name: ("INSERT", "UPDATE"),
        own.outbox.name: ("INSERT", "DELETE"),
        own.refused.name: ("INSERT",),
        own.relay.name: ("UPDATE",),
    }


def grant(conn: Connection, passwords: Mapping[str, str]) -> None:
    """Create the roles, with ``passwords`` by role where given, and grant their rights. Idempotent.

    Needs a role that owns the schema and may create roles.
    """
    for role in (*(service.role for service in SERVICES.values()), READER):
        _make_role(conn, role, passwords.get(role))
        _run(conn, "GRANT USAGE ON SCHEMA {} TO {}", SCHEMA, role)
        # Revokes what an older release granted and this one does not.
        _run(conn, "REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}", SCHEMA, role)
        _run(conn, "GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}", SCHEMA, role)
    # A schema of an older release does not have later tables and columns.
    known = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = :schema"
    there = {(table, column) for table, column in conn.execute(text(known), {"schema": SCHEMA})}
    tables_there = {table for table, _ in there}
    for name, tables in WRITES.items():
        service = SERVICES[name]
        for table, rights in (tables | bus_rights(service)).items():
            for right in rights if table in tables_there else ():
                if right in OF_TABLES:
                    _run(conn, f"GRANT {right} ON {{}} TO {{}}", (SCHEMA, table), service.role)
                elif (table, column := "lock_only" if right == "lock" else right) in there:
                    _run(conn, "GRANT UPDATE ({}) ON {} TO {}", column, (SCHEMA, table), service.role)
        _run(conn, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA {} TO {}", SCHEMA, service.role)
        _run(conn, "GRANT EXECUTE ON FUNCTION {}(bigint) TO {}", (SCHEMA, "begin_generation"), service.role)


def _make_role(conn: Connection, role: str, password: str | None) -> None:
    exists = conn.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).first()
    if not exists:
        _run(conn, "CREATE ROLE {} LOGIN", role)
    if password is not None:
        _run(conn, "ALTER ROLE {} LOGIN PASSWORD {}", role, sql.Literal(password))
    # Services set these when they connect; other clients that log in as a service get them too.
    for setting, value in SERVICE_LIMITS.items():
        _run(conn, f"ALTER ROLE {{}} SET {setting} = {{}}", role, sql.Literal(value))


def _run(conn: Connection, statement: str, *parts: str | tuple[str, str] | sql.Literal) -> None:
    """Execute ``statement`` with ``parts`` quoted as identifiers."""
    driver = conn.connection.driver_connection
    assert driver is not None
    composed = sql.SQL(statement).format(
        *(
            part if isinstance(part, sql.Literal) else sql.Identifier(*([part] if isinstance(part, str) else part))
            for part in parts
        )
    )
    conn.exec_driver_sql(composed.as_string(driver).replace("%", "%%"))
