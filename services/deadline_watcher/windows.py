"""Closing digests: one event and one callback for all misses of a window."""

from __future__ import annotations

from sqlalchemy import RowMapping, text

from deadline_watcher import events
from deadline_watcher.verdicts import call, task_ends
from retrofill.bus.topics import Topic
from retrofill.bus.transaction import Transaction
from retrofill.store import deadlines, digests
from retrofill.store.clock import database_now

MAKING_SECONDS = 60


def close_due(tx: Transaction) -> None:
    """Close the digests of the shard whose time is over."""
    for window in digests.lock_due(tx.conn, tx.partition):
        _close(tx, window)


def _close(tx: Transaction, window: RowMapping) -> None:
    # However many they are: between this and the next statement the session is idle while the event is made.
    tx.conn.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{MAKING_SECONDS}s'"))
    rows = deadlines.of_digest(tx.conn, window["id"])
    now = database_now(tx.conn)
    digests.close(tx.conn, window["id"], now)
    tasks = task_ends(tx, rows)
    backfills = deadlines.backfill_facts(tx.conn, {row["backfill_id"] for row in rows})
    told = [
        events.facts(row, backfills[row["backfill_id"]], tasks, row["decided_at"])
        | {"recovered_at": row["recovered_at"]}
        for row in rows
    ]
    lead = next(row for row in rows if row["id"] == window["id"])
    parts = events.digest(dict(window), lead["callback"], told, now, tx.max_message_bytes)
    for part in parts:
        tx.emit(Topic.DEADLINE_MISSED, window["id"], part)
    if lead["callback"] is not None:
        first = next(each for each in told if each["deadline_id"] == window["id"])
        timezone = backfills[lead["backfill_id"]].timezone
        call(tx, [events.callback(lead, first, parts[0], timezone, len(rows))])
