"""Triggers that record every state change and every outbox row, in the same transaction.

The oracle's own source: it does not depend on what the services report. Rolled-back work is not
recorded. Within one shard, the records are numbered in commit order, because its transactions do
not overlap.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from retrofill_core.store.tables import SERVICE_TABLES
from tests.support.installation import Installation

TABLES = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.change (
    seq bigserial PRIMARY KEY, tx text NOT NULL DEFAULT pg_current_xact_id()::text,
    began timestamptz NOT NULL DEFAULT transaction_timestamp(), at timestamptz NOT NULL DEFAULT clock_timestamp(),
    entity text NOT NULL, id text NOT NULL, "from" text, "to" text NOT NULL, attempt int, attempt_id bigint, task text
);
CREATE TABLE chaos.event (
    seq bigserial PRIMARY KEY, service text NOT NULL, topic text NOT NULL, key bytea, ce_id text, digest text
);
CREATE FUNCTION chaos.note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = chaos AS $$
DECLARE was text;
BEGIN
    IF TG_OP = 'UPDATE' THEN was := OLD.state; END IF;
    CASE TG_TABLE_NAME
    WHEN 'run' THEN
        INSERT INTO change (entity, id, "from", "to", attempt, attempt_id)
        VALUES ('run', NEW.id, was, NEW.state, NEW.attempt, NEW.attempt_id);
    WHEN 'task_run' THEN
        INSERT INTO change (entity, id, "from", "to", attempt, task)
        VALUES ('task_run', NEW.run_id, was, NEW.state, NEW.attempt, NEW.task);
    WHEN 'callback' THEN
        INSERT INTO change (entity, id, "from", "to", attempt)
        VALUES ('callback', NEW.deadline_id, was, NEW.state, NEW.attempts);
    ELSE
        INSERT INTO change (entity, id, "from", "to") VALUES (TG_TABLE_NAME, NEW.id, was, NEW.state);
    END CASE;
    RETURN NULL;
END $$;
CREATE FUNCTION chaos.note_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = chaos AS $$
BEGIN
    INSERT INTO event (service, topic, key, ce_id, digest)
    SELECT TG_ARGV[0], NEW.topic, NEW.key,
        (SELECT h->>1 FROM jsonb_array_elements(NEW.headers) h WHERE h->>0 = 'ce_id' LIMIT 1), md5(NEW.value);
    RETURN NULL;
END $$;
"""
ENTITIES = ("backfill", "run", "task_run", "attempt", "deadline", "callback")
# There are too many inserts of these rows to record. Their later changes are checked instead.
INSERTS_NOT_NOTED = ("run", "task_run")
CHANGE = (
    "CREATE TRIGGER chaos_change AFTER UPDATE OF state ON retrofill.{} FOR EACH ROW"
    " WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION chaos.note_change()"
)
INSERT = "CREATE TRIGGER chaos_insert AFTER INSERT ON retrofill.{} FOR EACH ROW EXECUTE FUNCTION chaos.note_change()"
EVENT = "CREATE TRIGGER chaos_event AFTER INSERT ON retrofill.{} FOR EACH ROW EXECUTE FUNCTION chaos.note_event({})"
Row = dict[str, Any]


def install(made: Installation) -> None:
    """Install the triggers. Call before the first request."""
    with psycopg.connect(made.settings.dsn_of("owner")) as conn:
        conn.execute(TABLES)
        for entity in ENTITIES:
            conn.execute(sql.SQL(CHANGE).format(sql.Identifier(entity)))
            if entity not in INSERTS_NOT_NOTED:
                conn.execute(sql.SQL(INSERT).format(sql.Identifier(entity)))
        for package in SERVICE_TABLES:
            conn.execute(sql.SQL(EVENT).format(sql.Identifier(f"{package}_outbox"), sql.Literal(package)))


def changes(made: Installation) -> list[Row]:
    """All state changes.

    Columns: ``entity``, ``id``, ``from``, ``to``, ``attempt`` (of a run: how often it has begun),
    ``attempt_id``, ``task``, ``tx``, and the times ``began`` and ``at``.
    """
    return _rows(made, "SELECT * FROM chaos.change ORDER BY seq")


def committed(made: Installation) -> list[Row]:
    """All committed events: ``service``, ``topic``, ``key``, ``ce_id`` and the MD5 of the value."""
    rows = _rows(made, "SELECT * FROM chaos.event ORDER BY seq")
    return [{**row, "key": (row["key"] or b"").decode("utf-8", "replace")} for row in rows]


def _rows(made: Installation, statement: str) -> list[Row]:
    with psycopg.connect(made.settings.dsn_of("owner"), row_factory=dict_row) as conn:
        return conn.execute(statement.encode()).fetchall()
