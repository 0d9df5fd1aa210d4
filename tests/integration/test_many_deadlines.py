"""Very many deadlines of one shard: the number read at once stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from tests.support.history import waiting
from tests.support.installation import Installation
from tests.support.statements import recorded, scanned

from deadline_watcher.handler import LISTED, close_due
from retrofill_core.bus.handler import SetAside
from retrofill_core.bus.transaction import shard_transaction
from retrofill_core.contract.base import decode
from retrofill_core.contract.deadlines import DeadlinesMissed
from retrofill_core.contract.topics import WATCHER, Topic
from retrofill_core.store import deadlines
from retrofill_core.store.engine import make_engine

COUNT = 2 * LISTED + 500
# All due at the same moment, as the deadlines of one plan are.
_DEADLINES = """
INSERT INTO deadline (shard, alert, pipeline, backfill_id, run_id, reference, due_at, state, decided_at, digest_seconds,
                      callback)
SELECT 0, %s, 'new-1', backfill_id, id, 'RUN_QUEUED_AT', '2100-01-01Z', %s,
       CASE WHEN %s = 'missed' THEN clock_timestamp() END, 1, 'page' FROM run ORDER BY id
RETURNING id
"""


@pytest.fixture
def engine(installation: Installation) -> Iterator[Engine]:
    """An engine with the watcher's role, on a database with many queued runs."""
    waiting(installation, 1, COUNT)
    made = make_engine(installation.settings.dsn_of(WATCHER.name), "watcher")
    yield made
    made.dispose()


def test_a_digest_of_very_many_lists_the_first_and_counts_them_all(installation: Installation, engine: Engine) -> None:
    ids = [row["id"] for row in installation.query(_DEADLINES, "quiet", "missed", "missed")]
    lead = ids[7]
    installation.query("UPDATE deadline SET digest_id = %s RETURNING id", lead)
    installation.query(
        "INSERT INTO deadline_digest (id, shard, pipeline, alert, target, opened_at, closes_at)"
        " VALUES (%s, 0, 'new-1', 'quiet', 't', clock_timestamp(), clock_timestamp()) RETURNING id",
        lead,
    )
    with shard_transaction(engine, WATCHER, 0, 0, 900_000) as tx:
        close_due(tx, SetAside("digest_set_aside"))
    parts = [decode(each.value) for each in tx.outgoing if each.topic == Topic.DEADLINE_MISSED]
    listed = [each.deadline_id for part in parts if isinstance(part, DeadlinesMissed) for each in part.missed]
    assert listed == [lead, *(id for id in ids if id != lead)][:LISTED]
    fields = {(part.count, part.not_listed) for part in parts if isinstance(part, DeadlinesMissed)}
    assert fields == {(COUNT, COUNT - LISTED)}
    event = installation.value("SELECT event FROM callback")
    assert (event["count"], event["not_listed"]) == (COUNT, COUNT - LISTED)
    assert installation.value("SELECT closed_at IS NOT NULL FROM deadline_digest")


def test_what_a_former_owner_left_is_found_window_by_window(installation: Installation, engine: Engine) -> None:
    ids = [row["id"] for row in installation.query(_DEADLINES, "late", "armed", "armed")]
    ended = {ids[3], ids[COUNT // 2], ids[-1]}
    installation.query(
        "UPDATE run SET state = 'succeeded', finished_at = clock_timestamp()"
        " WHERE id IN (SELECT run_id FROM deadline WHERE id = ANY(%s)) RETURNING id",
        list(ended),
    )
    found: list[int] = []
    windows = 0
    place: deadlines.ScanPosition | None = deadlines.START
    with recorded(engine) as sent, engine.connect() as conn:
        while place is not None:
            left, place = deadlines.left_armed(conn, 0, place)
            found += left
            windows += 1
    assert sorted(found) == sorted(ended)
    assert windows == COUNT // deadlines.BATCH + 1
    with installation.session() as conn:
        conn.execute("SET enable_seqscan = off")
        assert [scanned(conn, statement) for statement in sent.statements] == [set()] * len(sent.statements)
