"""Bulk-inserted rows that resemble years of work, for tests and benchmarks of large tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.support.definitions import daily
from tests.support.installation import Installation

_PIPELINES = """
INSERT INTO pipeline (name, definition, definition_hash, max_active_runs)
SELECT %(prefix)s || n, jsonb_set(%(definition)s, '{name}', to_jsonb(%(prefix)s || n)), 'made', %(limit)s
FROM generate_series(1, %(pipelines)s) AS n
"""
_BACKFILLS = """
INSERT INTO backfill (id, pipeline_no, pipeline, shard, state, covers, runs, max_active_runs, reprocess_behavior,
                      run_backwards, on_run_failure, conf, definition, ended_at)
SELECT p.name, p.no, p.name, %(shard)s, %(state)s,
       tstzrange('2000-01-01Z', '2000-01-01Z'::timestamptz + %(runs)s * interval '1 day'), %(runs)s, %(limit)s, 'none',
       false, %(on_run_failure)s, '{}', p.definition, CASE WHEN %(state)s = 'succeeded' THEN clock_timestamp() END
FROM pipeline AS p WHERE p.name LIKE %(prefix)s || '%%'
"""
_ATTEMPTS = """
INSERT INTO attempt (backfill_id, pipeline_no, mode, position, runs, state, host, lease_seconds, code, began_at,
                     ended_at, outcome)
SELECT b.id, b.pipeline_no, 'each', n, 1, 'ended', 'made', 15, b.definition -> 'code', clock_timestamp(),
       clock_timestamp(), 'done'
FROM backfill AS b, generate_series(0, %(runs)s - 1) AS n WHERE b.id LIKE %(prefix)s || '%%' AND %(attempt)s > 0
"""
_RUNS = """
INSERT INTO run (backfill_id, pipeline_no, interval_start, interval_end, position, state, attempt, attempt_id,
                 started_at, finished_at)
SELECT b.id, b.pipeline_no, '2000-01-01Z'::timestamptz + n * interval '1 day',
       '2000-01-01Z'::timestamptz + (n + 1) * interval '1 day', n, %(run_state)s, %(attempt)s, a.id,
       CASE WHEN %(attempt)s > 0 THEN clock_timestamp() END, CASE WHEN %(attempt)s > 0 THEN clock_timestamp() END
FROM backfill AS b CROSS JOIN generate_series(0, %(runs)s - 1) AS n
LEFT JOIN attempt AS a ON a.backfill_id = b.id AND a.position = n
WHERE b.id LIKE %(prefix)s || '%%'
"""
INTERVALS = """
INSERT INTO backfill_interval (backfill_id, interval_start, interval_end, run_id)
SELECT backfill_id, interval_start, interval_end, id FROM run WHERE backfill_id LIKE %(prefix)s || '%%'
"""
_TASKS = """
INSERT INTO task_run (run_id, attempt, task, state, try_number, started_at, finished_at)
SELECT id, attempt, 'only', 'succeeded', 1, started_at, finished_at FROM run
WHERE backfill_id LIKE %(prefix)s || '%%' AND attempt > 0
"""
_DEADLINES = """
INSERT INTO deadline (shard, alert, pipeline, backfill_id, run_id, reference, due_at, state, decided_at)
SELECT id %% 4, 'late', backfill_id, backfill_id, id, 'RUN_QUEUED_AT', finished_at, 'met', finished_at FROM run
WHERE backfill_id LIKE %(prefix)s || '%%' AND attempt > 0
"""


def finished(made: Installation, pipelines: int, runs: int, prefix: str = "old-") -> None:
    """Create ``pipelines`` pipelines, each with one backfill of ``runs`` daily runs from 2000 on
    that succeeded, each in an attempt of its own, and met their deadlines.
    """
    _make(made, prefix, pipelines, runs, state="succeeded", run_state="succeeded", attempt=1)


def waiting(
    made: Installation,
    backfills: int,
    runs: int,
    *,
    prefix: str = "new-",
    shard: int = 0,
    limit: int = 16,
    on_run_failure: str = "continue",
    **definition: Any,
) -> list[str]:
    """Create running backfills, one per pipeline, with queued daily runs from 2000 on. Returns
    their ids. ``definition``: more of the pipelines' definitions.
    """
    more = {"shard": shard, "limit": limit, "on_run_failure": on_run_failure}
    _make(made, prefix, backfills, runs, definition, state="running", run_state="queued", attempt=0, **more)
    return [f"{prefix}{n}" for n in range(1, backfills + 1)]


def _make(
    made: Installation,
    prefix: str,
    pipelines: int,
    runs: int,
    definition: Mapping[str, Any] = MappingProxyType({}),
    **values: object,
) -> None:
    given = {
        "prefix": prefix,
        "pipelines": pipelines,
        "runs": runs,
        "definition": json.dumps(daily(**definition).as_json()),
        "shard": 0,
        "limit": 16,
        "on_run_failure": "continue",
        **values,
    }
    with made.session() as conn:
        for statement in (_PIPELINES, _BACKFILLS, _ATTEMPTS, _RUNS, INTERVALS, _TASKS, _DEADLINES):
            conn.execute(statement.encode(), given)
        conn.commit()
        conn.autocommit = True
        # Autovacuum would do this soon after so many inserts.
        conn.execute("VACUUM ANALYZE")
