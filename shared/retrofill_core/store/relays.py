"""State of all services' relays in Postgres."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql
from sqlalchemy import Connection, select

from retrofill_core.contract.topics import SERVICES
from retrofill_core.store.tables import SCHEMA, SERVICE_TABLES


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
