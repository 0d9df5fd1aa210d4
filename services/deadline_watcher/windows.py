"""Closes digests: one event and one callback for all misses of a window."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import RowMapping

from deadline_watcher import events
from deadline_watcher.verdicts import call, task_ends
from retrofill_core.bus.set_aside import SetAside
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import Topic
from retrofill_core.store import deadlines, digests, subjects
from retrofill_core.store.clock import database_now

# A digest lists at most this many misses; all are rows of ``deadline`` with its ``digest_id``.
LISTED = 1_000


def close_due(tx: Transaction, set_aside: SetAside) -> None:
    """Close the shard's digests whose window has ended, except those that are set aside."""
    set_aside.each(tx, digests.lock_due(tx.conn, tx.partition, set_aside.ids()), _close_all)


def _close_all(tx: Transaction, windows: Sequence[RowMapping]) -> None:
    for window in windows:
        _close(tx, window)


def _close(tx: Transaction, window: RowMapping) -> None:
    now = database_now(tx.conn)
    digests.close(tx.conn, window["id"], now)
    # No miss can join any more. Reading is bounded by LISTED, however many did.
    count = deadlines.count_of_digest(tx.conn, window["id"])
    rows = deadlines.of_digest(tx.conn, window["id"], LISTED)
    tasks = task_ends(tx, rows)
    backfills = subjects.backfill_facts(tx.conn, {row["backfill_id"] for row in rows})
    fields = [
        events.facts(row, backfills[row["backfill_id"]], tasks, row["decided_at"])
        | {"recovered_at": row["recovered_at"]}
        for row in rows
    ]
    lead = rows[0]
    parts = events.digest(dict(window), lead["callback"], fields, count, now, tx.max_message_bytes)
    for part in parts:
        tx.emit(Topic.DEADLINE_MISSED, window["id"], part)
    if lead["callback"] is not None:
        timezone = backfills[lead["backfill_id"]].timezone
        call(tx, [events.callback(lead, fields[0], parts[0], timezone, count)])
