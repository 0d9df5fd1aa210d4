"""Sets aside an outbox row that Kafka refuses permanently."""

from __future__ import annotations

import structlog
from sqlalchemy import Connection, RowMapping, delete, insert, literal, select

from retrofill_core.bus.dead_letters import dead_letter_of
from retrofill_core.bus.observability import metrics
from retrofill_core.contract.topics import Service, Topic
from retrofill_core.store.outbox import Outgoing, insert_rows, unpack_headers
from retrofill_core.store.tables import ServiceTables

log = structlog.get_logger(__name__)


def set_aside(conn: Connection, service: Service, own: ServiceTables, id: int, reason: str) -> None:
    """Replace outbox row ``id`` by its dead letter, in the caller's transaction.

    A refused dead letter is moved to ``<service>_outbox_refused``: it cannot be published anywhere.
    """
    box = own.outbox
    row = conn.execute(select(box).where(box.c.id == id)).mappings().one()
    why = f"Kafka refuses outbox row {id}: {reason}"
    if row["topic"] == Topic.DEAD_LETTERS:
        names = [column.name for column in box.columns]
        kept = select(*box.columns, literal(why)).where(box.c.id == id)
        conn.execute(insert(own.refused).from_select([*names, "reason"], kept))
    else:
        insert_rows(conn, own, [dead_letter_of(_message(row), why, service.name)])
        metrics.DEAD_LETTERS.labels(row["topic"]).inc()
    conn.execute(delete(box).where(box.c.id == id))
    log.error(
        "event_refused",
        outbox_row=id,
        topic=row["topic"],
        key=(row["key"] or b"").decode("utf-8", "replace"),
        reason=reason,
        kept_in=own.refused.name if row["topic"] == Topic.DEAD_LETTERS else str(Topic.DEAD_LETTERS),
    )


def _message(row: RowMapping) -> Outgoing:
    headers = tuple(
        (name, raw.encode() if isinstance(raw, str) else raw) for name, raw in unpack_headers(row["headers"])
    )
    return Outgoing(row["topic"], row["key"], row["value"], headers)
