"""Installations with backfills that ended long ago, and the rows that a purge leaves or exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.history import finished
from tests.support.installation import Installation
from tests.support.terminal import point_at

from retrofill_core.store.purge import KINDS

TABLES = [kind.table.name for kind in KINDS]
# Adds a second backfill to each pipeline of ``finished``, whose runs become the latest of their
# intervals.
AGAIN = (
    "INSERT INTO backfill (id, pipeline_no, pipeline, shard, state, covers, runs, max_active_runs, reprocess_behavior,"
    " run_backwards, on_run_failure, conf, definition, ended_at) SELECT 'again-' || id, pipeline_no, pipeline, shard,"
    " state, covers, 4, max_active_runs, 'completed', false, 'continue', conf, definition, ended_at FROM backfill",
    "INSERT INTO run (backfill_id, pipeline_no, interval_start, interval_end, position, state, attempt, started_at,"
    " finished_at) SELECT 'again-' || backfill_id, pipeline_no, interval_start, interval_end, position, state, 1,"
    " started_at, finished_at FROM run WHERE position < 4 ORDER BY id",
    "INSERT INTO backfill_interval (backfill_id, interval_start, interval_end, run_id)"
    " SELECT backfill_id, interval_start, interval_end, id FROM run WHERE backfill_id LIKE 'again-%'",
)
# Attempts of up to three runs instead of one, and of each backfill one that was lost before.
ATTEMPTS = (
    "UPDATE run SET attempt_id = NULL",
    "DELETE FROM attempt",
    "INSERT INTO attempt (backfill_id, pipeline_no, mode, position, runs, state, host, lease_seconds, code, ended_at,"
    " outcome) SELECT backfill_id, pipeline_no, 'each', min(position), count(*), 'ended', 'h', 30, '{}',"
    " max(finished_at), 'done' FROM run GROUP BY backfill_id, pipeline_no, position / 3",
    "UPDATE run SET attempt_id = attempt.id FROM attempt WHERE attempt.backfill_id = run.backfill_id"
    " AND run.position >= attempt.position AND run.position < attempt.position + attempt.runs",
    "INSERT INTO attempt (backfill_id, pipeline_no, mode, position, runs, state, host, lease_seconds, code, ended_at,"
    " outcome) SELECT id, pipeline_no, 'each', 0, 1, 'ended', 'h', 30, '{}', ended_at, 'lost' FROM backfill",
)


def execute(made: Installation, *statements: str) -> None:
    with made.session() as conn:
        for statement in statements:
            conn.execute(statement.encode())
        conn.commit()


def age(made: Installation, *ids: str) -> None:
    """Backdate the end of these backfills by a hundred days."""
    named = ", ".join(f"'{id}'" for id in ids) or "SELECT id FROM backfill"
    execute(made, f"UPDATE backfill SET ended_at = ended_at - interval '100 days' WHERE id IN ({named})")


def rows(made: Installation) -> dict[str, set[tuple[Any, ...]]]:
    """The rows in Postgres, in the export's format."""
    found = {}
    for kind in KINDS:
        shown = ", ".join(
            f"{c.name}::text" if str(c.type) in ("JSONB", "TSTZRANGE", "TSTZMULTIRANGE") else c.name
            for c in kind.columns
        )
        found[kind.table.name] = {tuple(row.values()) for row in made.query(f"SELECT {shown} FROM {kind.table.name}")}
    return found


def exported(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The rows in the export files."""
    found = {}
    for table in TABLES:
        files = sorted((folder / table).glob("*.parquet"))
        read = [pq.read_table(file, partitioning=None).to_pylist() for file in files]
        found[table] = [tuple(row.values()) for each in read for row in each]
    return found


@pytest.fixture
def here(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """Point the CLI at the installation."""
    point_at(installation, monkeypatch)
    return installation


@pytest.fixture
def old(here: Installation) -> Installation:
    """Three pipelines with two old backfills each: one of ten days, and one that repeats the first
    four.
    """
    finished(here, 3, 10)
    execute(here, *AGAIN, *ATTEMPTS)
    age(here)
    return here


def purge(cli: Any, *more: str) -> dict[str, Any]:
    result = cli("purge", "--yes", "--older-than", "90d", "--json", *more)
    assert result.status == 0, result.err
    document: dict[str, Any] = result.document
    return document
