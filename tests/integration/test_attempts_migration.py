"""The migration that makes attempts rows of their own: refused while a run is live, and all other
runs are kept.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.installation import Installation
from tests.support.releases import command, dropped, ended, schema_of
from tests.support.tiers import some

from retrofill_core.store.tables import REVISION
from retrofill_tools.admin.database import prepare_database

BEFORE = "0010"
REFUSED = (
    "retrofill: Postgres refused: runs are live: pause all backfills (retrofill backfill pause ID), wait until no run"
    " is running, stop the services and run retrofill init again\n"
)
# A paused backfill of four days, at the schema before: the first run is live, the others have ended or wait.
ROWS = (
    "INSERT INTO pipeline (name, definition, definition_hash, max_active_runs) VALUES ('p', '{}', 'h', 1)",
    "INSERT INTO backfill (id, pipeline_no, pipeline, shard, state, covers, runs, max_active_runs, reprocess_behavior,"
    " run_backwards, on_run_failure, conf, definition) SELECT 'b', no, name, 0, 'paused',"
    " tstzrange('2000-01-01Z', '2000-01-05Z'), 4, 1, 'none', false, 'continue', '{}', '{}' FROM pipeline",
    "INSERT INTO run (backfill_id, pipeline_no, interval_start, interval_end, position, state, attempt, started_at,"
    " finished_at, outputs) SELECT 'b', no, '2000-01-01Z'::timestamptz + n * interval '1 day',"
    " '2000-01-02Z'::timestamptz + n * interval '1 day', n, state, attempt, CASE WHEN attempt > 0 THEN now() END,"
    " CASE WHEN state IN ('succeeded', 'failed') THEN now() END, '{\"folders\": [\"/o\"]}' FROM pipeline,"
    " (VALUES (0, 'queued', 2), (1, 'queued', 0), (2, 'succeeded', 1), (3, 'failed', 5)) AS r (n, state, attempt)",
)
BECOMES_LIVE = (
    "UPDATE run SET state = %s, slot = 1, pipeline_slot = 1, lease_until = now() - interval '1 day', lease_seconds = 15"
    " WHERE position = 0"
)
IS_OVER = "UPDATE run SET state = 'queued', slot = NULL, pipeline_slot = NULL, lease_until = NULL WHERE position = 0"


def execute(made: Installation, *statements: str, given: tuple[Any, ...] | None = None) -> None:
    with made.session() as conn:
        for statement in statements:
            conn.execute(statement.encode(), given)
        conn.commit()


def runs(made: Installation) -> list[dict[str, Any]]:
    return made.query("SELECT position, state, attempt, started_at, finished_at, outputs FROM run ORDER BY position")


@pytest.fixture
def before(installation: Installation) -> Installation:
    """An installation with the schema before, and a paused backfill."""
    dropped(installation)
    prepare_database(installation.settings, BEFORE)
    execute(installation, *ROWS)
    return installation


@pytest.mark.parametrize("state", some(["starting", "running", "publishing"], "publishing"))
def test_it_is_refused_while_a_run_is_live_and_done_once_none_is(before: Installation, state: str) -> None:
    """A lease that has ended proves nothing: only the release before may end that run."""
    execute(before, BECOMES_LIVE, given=(state,))
    as_they_were = runs(before)
    assert ended(command(before, "init")) == (1, REFUSED)
    assert (schema_of(before), runs(before)) == (BEFORE, as_they_were)
    assert before.value("SELECT to_regclass('attempt') IS NULL")
    execute(before, IS_OVER)
    assert ended(command(before, "init")) == (0, "")
    assert schema_of(before) == REVISION


def test_runs_that_are_not_live_are_kept_and_belong_to_no_attempt(before: Installation) -> None:
    as_they_were = runs(before)
    assert ended(command(before, "init")) == (0, "")
    assert runs(before) == as_they_were
    assert [(row["state"], row["attempt"]) for row in as_they_were] == [
        ("queued", 2),
        ("queued", 0),
        ("succeeded", 1),
        ("failed", 5),
    ]
    assert before.value("SELECT count(*) FROM run WHERE attempt_id IS NULL AND accepted_attempt IS NULL") == 4
    assert before.value("SELECT count(*) FROM attempt") == 0
