"""The relays of all services as Postgres has them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from retrofill.contract.topics import SERVICES
from retrofill.store.tables import SERVICE_TABLES


@dataclass(frozen=True)
class RelayRow:
    """The relay of a service as Postgres has it."""

    epoch: int
    batch: int


def relays(conn: Connection) -> dict[str, RelayRow]:
    """By the service's name."""
    found = {}
    for name, service in SERVICES.items():
        relay = SERVICE_TABLES[service.package].relay
        row = conn.execute(select(relay.c.epoch, relay.c.batch)).one()
        found[name] = RelayRow(row.epoch, row.batch)
    return found
