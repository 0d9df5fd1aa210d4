"""The cost of a long history: a purge of it, the next purge, and a digest of a million misses."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from datetime import timedelta

from tests.support.history import INTERVALS
from tests.support.installation import Installation

from benchmarks.claims_scale import HISTORY_RUNS, fill, unchecked
from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import installed, servers
from deadline_watcher.handler import close_due
from retrofill_core.bus.handler import SetAside
from retrofill_core.bus.transaction import shard_transaction
from retrofill_core.contract.topics import WATCHER
from retrofill_core.store.engine import make_engine
from retrofill_tools.admin.purge import Purge

MISSED = 1_000_000
_AGE = "UPDATE backfill SET ended_at = ended_at - interval '100 days' WHERE ended_at IS NOT NULL"
_MISSED = """
INSERT INTO deadline (shard, alert, pipeline, backfill_id, run_id, reference, due_at, state, decided_at, digest_seconds, callback)
SELECT 0, 'late', 'old', backfill_id, id, 'RUN_QUEUED_AT', clock_timestamp(), 'missed', clock_timestamp(), 60, 'page'
FROM run WHERE state = 'succeeded' ORDER BY id LIMIT %s
"""
_DIGEST = """
WITH lead AS (SELECT min(id) AS id FROM deadline WHERE digest_id IS NULL),
joined AS (UPDATE deadline SET digest_id = lead.id FROM lead)
INSERT INTO deadline_digest (id, shard, pipeline, alert, target, opened_at, closes_at)
SELECT id, 0, 'old', 'late', 't', clock_timestamp(), clock_timestamp() FROM lead
"""


def closed(made: Installation, misses: int) -> tuple[float, float]:
    """Seconds, and MB of memory, that the watcher needs to close a digest of so many misses."""
    with made.session() as conn:
        conn.execute(_MISSED.encode(), [misses])
        conn.execute(_DIGEST.encode())
        conn.commit()
        conn.autocommit = True
        conn.execute("VACUUM ANALYZE deadline")
    engine = make_engine(made.settings.dsn_of(WATCHER.name), "bench")
    before, began = _peak_mb(), time.monotonic()
    try:
        with shard_transaction(engine, WATCHER, 0, 0, 900_000) as tx:
            close_due(tx, SetAside("digest_set_aside"))
        return time.monotonic() - began, _peak_mb() - before
    finally:
        engine.dispose()


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def purged(made: Installation) -> tuple[float, int]:
    """Seconds of a purge of all that is old, and the number of rows that it deleted."""
    engine = make_engine(made.settings.dsn_of("owner"), "bench", pool_size=2)
    began = time.monotonic()
    try:
        done = Purge(engine, timedelta(days=90)).run()
    finally:
        engine.dispose()
    return time.monotonic() - began, sum(done.rows.values())


def run() -> Sequence[Figure]:
    """On an installation of its own."""
    with servers() as on, installed(on) as made:
        return measured(made, HISTORY_RUNS, MISSED)


def measured(made: Installation, runs: int, misses: int) -> Sequence[Figure]:
    """One after the other: ``runs`` finished runs, a digest of ``misses`` of them, two purges."""
    fill(made, 1, runs)
    with unchecked(made) as conn:
        conn.execute(INTERVALS.encode(), {"prefix": "old-"})
        conn.commit()
    seconds, memory = closed(made, misses)
    with made.session() as conn:
        conn.execute(_AGE.encode())
        conn.commit()
    first, deleted = purged(made)
    again, none = purged(made)
    assert deleted > 0, "the first purge deletes"
    assert none == 0, "the second one finds nothing"
    return [
        figure(f"closing a digest of {misses:,}", "s", [seconds]),
        figure("memory that it adds", "MB", [memory], at_most=50),
        figure("a purge", "s", [first]),
        figure("rows that it deleted", "", [deleted]),
        figure("rows deleted", "rows/s", [deleted / first]),
        figure("the next purge, beside the first", "x", [again / first], at_most=0.05),
    ]


BENCHMARK = Benchmark(
    "history",
    f"{HISTORY_RUNS:,} finished runs in the tables (BENCH_HISTORY sets how many): a digest of {MISSED:,} misses is"
    " closed, all is purged that may go, and again",
    "the first purge",
    "the digest in bounded memory, whatever its size; a purge does not walk what an earlier one left",
    run,
)
