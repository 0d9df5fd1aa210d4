"""The cost of a freed slot while a thousand backfills of one pipeline wait for one.

Counts statements, commits and rows; measures no time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import text
from tests.support.definitions import daily
from tests.support.hot_paths import Hot
from tests.support.installation import Installation

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import installed, servers
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.topics import RUN_STARTER
from retrofill_core.store.engine import writes
from run_starter.executors import LaunchRequest

HISTORY_RUNS = int(os.environ.get("BENCH_HISTORY", "1000000"))
WAITING = (1, 1000)
SLOTS = 4
FREED = 5
# The server's count for this transaction only: earlier counts are flushed first.
_ROWS_FETCHED = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
FROM pg_stat_xact_user_tables, pg_stat_force_next_flush() WHERE schemaname = 'retrofill'
"""
_PIPELINES = """
INSERT INTO pipeline (name, definition, definition_hash, max_active_runs)
SELECT n, jsonb_set(%(definition)s, '{name}', to_jsonb(n)), 'made', %(slots)s FROM unnest(ARRAY['old', 'many']) AS n
"""
_BACKFILLS = """
INSERT INTO backfill (id, pipeline_no, pipeline, shard, state, covers, runs, max_active_runs, reprocess_behavior,
                      run_backwards, on_run_failure, conf, definition, ended_at)
SELECT p.name || '-' || n, p.no, p.name, 0, %(state)s,
       tstzrange('2000-01-01Z'::timestamptz + n * %(runs)s * interval '1 hour',
                 '2000-01-01Z'::timestamptz + (n + 1) * %(runs)s * interval '1 hour'),
       %(runs)s, %(slots)s, 'none', false, 'pause', '{}', p.definition,
       CASE WHEN %(state)s = 'succeeded' THEN clock_timestamp() END
FROM pipeline AS p, generate_series(0, %(backfills)s - 1) AS n WHERE p.name = %(pipeline)s
"""
# One for each run of backfills that have ended.
_ATTEMPTS = """
INSERT INTO attempt (backfill_id, pipeline_no, mode, position, runs, state, host, lease_seconds, code, began_at, ended_at,
                     outcome)
SELECT b.id, b.pipeline_no, 'each', n, 1, 'ended', 'made', 15, b.definition -> 'code', b.ended_at, b.ended_at, 'done'
FROM backfill AS b, generate_series(0, %(runs)s - 1) AS n WHERE b.pipeline = %(pipeline)s AND b.ended_at IS NOT NULL
"""
_RUNS = """
INSERT INTO run (backfill_id, pipeline_no, interval_start, interval_end, position, state, attempt, attempt_id, started_at,
                 finished_at)
SELECT b.id, b.pipeline_no, lower(b.covers) + n * interval '1 hour', lower(b.covers) + (n + 1) * interval '1 hour', n,
       CASE WHEN b.ended_at IS NULL THEN 'queued' ELSE 'succeeded' END, CASE WHEN b.ended_at IS NULL THEN 0 ELSE 1 END, a.id,
       b.ended_at, b.ended_at
FROM backfill AS b CROSS JOIN generate_series(0, %(runs)s - 1) AS n
     LEFT JOIN attempt AS a ON a.backfill_id = b.id AND a.position = n
WHERE b.pipeline = %(pipeline)s
"""


@contextmanager
def unchecked(made: Installation) -> Iterator[Any]:
    """A session without the checks of foreign keys, which take most of the time for ten million rows."""
    with made.session() as conn:
        conn.execute("SET session_replication_role = replica")
        yield conn


def fill(made: Installation, waiting: int, history: int = HISTORY_RUNS) -> None:
    """Insert ``waiting`` running backfills of one pipeline, and another pipeline's history."""
    with unchecked(made) as conn:
        insert = partial(_insert, conn, definition=json.dumps(daily().as_json()), slots=SLOTS)
        insert(_PIPELINES)
        if history:
            insert(_BACKFILLS, pipeline="old", state="succeeded", backfills=history // 1000, runs=1000)
            insert(_ATTEMPTS, pipeline="old", runs=1000)
            insert(_RUNS, pipeline="old", runs=1000)
        insert(_BACKFILLS, pipeline="many", state="running", backfills=waiting, runs=20)
        insert(_RUNS, pipeline="many", runs=20)
        conn.commit()
        conn.autocommit = True
        conn.execute("VACUUM ANALYZE")


def _insert(conn: object, statement: str, **values: object) -> None:
    conn.execute(statement.encode(), values)  # type: ignore[attr-defined]  # psycopg's types cannot be imported here


def freed(made: Installation, waiting: int, history: int = HISTORY_RUNS) -> Mapping[str, float]:
    """What freeing a slot costs on average, one after the other."""
    fill(made, waiting, history)
    hot = Hot(made)
    hot.claimed([row["id"] for row in made.query("SELECT id FROM backfill WHERE state = 'running' ORDER BY id")])
    statements: list[str] = []
    commits = rows = 0
    for n in range(FREED):
        launches = hot.launched.launches
        assert len(launches) == SLOTS + n, "all slots are taken, again after each that was freed"

        def work(tx: Transaction, launch: LaunchRequest = launches[n]) -> None:
            nonlocal commits, rows
            before = writes(tx.conn)
            hot.ended_and_claimed(tx, launch)
            commits += writes(tx.conn) > before
            rows += tx.conn.execute(text(_ROWS_FETCHED)).scalar_one()

        statements += [each.text for each in hot.sent(RUN_STARTER, work).statements if "pg_stat_" not in each.text]
    return {"commits": commits / FREED, "statements": len(statements) / FREED, "rows fetched": rows / FREED}


def run() -> Sequence[Figure]:
    """Measure a single backfill, and a thousand that wait for the same slots."""
    counted = {}
    with servers() as on:
        for waiting in WAITING:
            with installed(on) as made:
                counted[waiting] = freed(made, waiting)
    one, many = (counted[waiting] for waiting in WAITING)
    return [
        *(
            figure(f"{what}, {waiting:,} of one pipeline", "a freed slot", [count])
            for waiting in WAITING
            for what, count in counted[waiting].items()
        ),
        figure("commits for a thousand beside one", "x", [many["commits"] / one["commits"]], at_most=1),
        figure("statements for a thousand more than for one", "", [many["statements"] - one["statements"]], at_most=2),
        figure(
            "rows fetched for a thousand more than for one",
            "",
            [many["rows fetched"] - one["rows fetched"]],
            at_most=200,
        ),
    ]


BENCHMARK = Benchmark(
    "claims_scale",
    "what the run-starter does from the reports of a run's end until the next run has its slot, with"
    f" {HISTORY_RUNS:,} finished runs in the tables (BENCH_HISTORY sets how many), when one backfill and when a"
    " thousand of one pipeline have runs to start",
    "one backfill",
    "the same for a thousand, but for a few rows",
    run,
)
