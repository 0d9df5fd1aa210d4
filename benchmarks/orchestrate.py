"""Runs per second when the runs do nothing: the cost of claims, reports, events and their relay."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from statistics import median

import psycopg
from tests.support.definitions import daily
from tests.support.history import waiting
from tests.support.installation import Installation, until
from tests.support.servers import Servers

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import IDLE_STARTER, installed, servers
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import Topic

DRIVERS = 256
RUNS = 10_000
LEAST, MOST = 1_000, 40_000
BACKFILLS = 100
REPEATS = 3
ENOUGH = 300.0
BATCH = 50
SECONDS = 3600.0
FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_CLAIM = """
WITH next AS (SELECT id, backfill_id, pipeline_no, position FROM run WHERE backfill_id = %s AND state = 'queued'
              ORDER BY position LIMIT %s),
     claimed AS (INSERT INTO attempt (backfill_id, pipeline_no, mode, position, runs, state, slot, pipeline_slot, host,
                                      lease_until, lease_seconds, code)
                 SELECT backfill_id, pipeline_no, 'each', position, 1, 'starting', n, n, 'bare',
                        clock_timestamp() + interval '15 s', 15, '{"module": "bare", "attribute": "p"}'
                 FROM (SELECT *, row_number() OVER (ORDER BY position) AS n FROM next) AS numbered
                 RETURNING id, position)
UPDATE run SET state = 'starting', attempt_id = claimed.id
FROM next JOIN claimed USING (position) WHERE run.id = next.id RETURNING run.id
"""
_TASKS = "INSERT INTO task_run (run_id, attempt, task, state) SELECT unnest(%s::bigint[]), 1, 'only', 'none'"
_OF_RUNS = "id IN (SELECT attempt_id FROM run WHERE id = ANY(%s))"
_REPORTS = (
    f"UPDATE attempt SET state = 'running', began_at = clock_timestamp() WHERE {_OF_RUNS} AND state = 'starting'",
    "UPDATE run SET state = 'running', attempt = attempt + 1, started_at = clock_timestamp() "
    "WHERE id = ANY(%s) AND state = 'starting'",
    _TASKS,
    "UPDATE task_run SET state = 'running', started_at = clock_timestamp() WHERE run_id = ANY(%s)",
    "UPDATE task_run SET state = 'succeeded', finished_at = clock_timestamp() WHERE run_id = ANY(%s)",
    "UPDATE run SET state = 'succeeded', finished_at = clock_timestamp() WHERE id = ANY(%s) AND state = 'running'",
    "UPDATE attempt SET state = 'ended', outcome = 'done', ended_at = clock_timestamp(), slot = NULL, "
    f"pipeline_slot = NULL, lease_until = NULL WHERE {_OF_RUNS} AND state = 'running'",
)


def orchestrated(made: Installation, runs: int, backfills: int, name: str, batch: int = 1) -> float:
    """Runs per second, from the first start to the last backfill's end, by the database clock."""
    each = runs // backfills
    last = (FIRST + timedelta(hours=each - 1)).isoformat()
    for n in range(backfills):
        definition = daily(f"{name}-{n}", schedule="@hourly", max_active_runs=DRIVERS, batch_size=batch)
        made.publish(Topic.PIPELINES, definition.name, PipelineApplied(pipeline=definition))
    # A request waits until its pipeline has been read, so no reply needs to be awaited in between.
    ids = [
        made.request(f"{name}-{n}", FIRST.isoformat(), last, max_active_runs=max(8, DRIVERS // backfills))
        for n in range(backfills)
    ]
    there = "SELECT count(*) FROM backfill WHERE id = ANY(%s)"
    until(lambda: made.value(there, ids) == backfills, f"{backfills} backfills", seconds=SECONDS)
    made.start(IDLE_STARTER, RETROFILL_DRIVER_SLOTS=str(DRIVERS))
    going = "SELECT count(*) FROM backfill WHERE id = ANY(%s) AND state <> 'succeeded'"
    until(lambda: made.value(going, ids) == 0, f"{runs} runs", seconds=SECONDS)
    made.replicas.pop().stop()
    ((began, ended),) = [
        tuple(row.values())
        for row in made.query(
            "SELECT (SELECT min(started_at) FROM run WHERE backfill_id = ANY(%s)), "
            "(SELECT max(ended_at) FROM backfill WHERE id = ANY(%s))",
            ids,
            ids,
        )
    ]
    return float(runs / (ended - began).total_seconds())


def bare(made: Installation, runs: int, name: str) -> float:
    """Runs per second when bare SQL changes the same rows on as many connections as drivers."""
    (id,) = waiting(made, 1, runs, prefix=name, limit=DRIVERS)
    with psycopg.connect(made.settings.dsn_of("owner")) as conn:
        conn.execute("SET search_path = retrofill")
        conn.commit()
        began = time.monotonic()
        while ids := [row[0] for row in conn.execute(_CLAIM, [id, DRIVERS])]:
            conn.commit()
            for statement in _REPORTS:
                conn.execute(statement.encode(), [ids])
            conn.commit()
        return runs / (time.monotonic() - began)


def fresh(on: Servers, runs: int, backfills: int, batch: int = 1) -> float:
    """Runs per second on a new installation."""
    with installed(on) as made:
        made.start("backfill-planner")
        return orchestrated(made, runs, backfills, "p", batch)


def run() -> Sequence[Figure]:
    """Measure one backfill, a hundred backfills, batches, and different sizes of one.

    Three rounds, or as many as fit in five minutes with what is measured once.
    """
    began = time.monotonic()
    with servers() as on:
        with installed(on) as made:
            sql = [bare(made, RUNS, f"bare-{n}-") for n in range(REPEATS)]
        most = fresh(on, MOST, 1)
        rounds: list[tuple[float, ...]] = []
        took = 0.0
        while len(rounds) < REPEATS and (not rounds or time.monotonic() + took < began + ENOUGH):
            before = time.monotonic()
            rounds.append(
                (fresh(on, LEAST, 1), fresh(on, RUNS, 1), fresh(on, RUNS, BACKFILLS), fresh(on, RUNS, 1, BATCH))
            )
            took = time.monotonic() - before
    least, one, hundred, batches = zip(*rounds, strict=True)
    return [
        figure("10,000 runs in 1 backfill", "runs/s", one, at_least=845),
        figure("10,000 runs in 100 backfills", "runs/s", hundred, at_least=845),
        figure(f"10,000 runs in 1 backfill, in batches of {BATCH}", "runs/s", batches, at_least=5000),
        figure("1,000 runs in 1 backfill", "runs/s", least),
        figure("40,000 runs in 1 backfill", "runs/s", [most]),
        figure("40,000 runs beside 10,000", "x", [most / median(one)], at_least=0.8),
        figure("bare SQL, the same changes", "runs/s", sql),
    ]


BENCHMARK = Benchmark(
    "orchestrate",
    "10,000 runs that do nothing (one process speaks for 256 drivers), from the first start to the end of the backfills",
    "the same changes of the same rows as bare SQL batches, without events, drivers and limits",
    "at least 845 runs/s on 2 cores, 5,000 in batches; flat from 1,000 to 40,000 runs in a backfill",
    run,
)
