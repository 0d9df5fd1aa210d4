"""``retrofill purge`` loses nothing if it is killed, if rows change under it, or while services run
beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.integration.cli.purging import TABLES, execute, exported, here, old, purge, rows
from tests.support.installation import Installation, until
from tests.support.tiers import some

from retrofill_core.contract.topics import Topic
from retrofill_core.store.engine import make_engine
from retrofill_tools.admin.purge import Export, Purge

__all__ = ["here", "old"]
COMMAND = [
    sys.executable,
    "-c",
    "from retrofill_tools.cli.main import run; run()",
    "purge",
    "--yes",
    "--older-than",
    "90d",
]


@pytest.mark.parametrize("point", some(["purge:deleted", "purge:exported", "purge:committed"], "purge:deleted"))
def test_a_purge_that_is_killed_loses_nothing_and_the_next_one_goes_on(
    cli: Any, old: Installation, tmp_path: Path, point: str
) -> None:
    before = rows(old)
    environment = {**os.environ, **old.environment(), "RETROFILL_CRASH_POINT": f"{point}@3"}
    killed = subprocess.run([*COMMAND, "--export", str(tmp_path)], env=environment, timeout=120, check=False)
    assert killed.returncode == -9
    between = rows(old)
    assert between != before
    # Its Postgres backend, and the backend's lock, may outlive it briefly.
    until(lambda: cli("purge", "--yes", "--older-than", "90d", "--export", str(tmp_path)).status == 0, "the next purge")
    left, files = rows(old), exported(tmp_path)
    for table in TABLES:
        assert left[table] | set(files[table]) == before[table]
        assert not left[table] & set(files[table])
        # Only rows that were about to be deleted when the purge was killed are exported twice.
        assert len(files[table]) == len(set(files[table])) or point == "purge:exported"
    assert {table: len(left[table]) for table in ("run", "attempt", "backfill_interval", "task_run", "deadline")} == {
        "run": 30,
        "attempt": 15,
        "backfill_interval": 0,
        "task_run": 0,
        "deadline": 0,
    }


def test_a_row_that_changes_while_it_is_exported_is_exported_again(old: Installation, tmp_path: Path) -> None:
    """A failed callback is replayed just after it was written to the export file."""
    execute(
        old,
        "INSERT INTO callback (deadline_id, shard, name, kwargs, state, last_error, finished_at)"
        " SELECT min(id), 0, 'page', '{}', 'failed', 'first', now() FROM deadline",
    )
    original: Any = Export.write
    changed: list[str] = []

    def write(self: Any, table: str, *given: Any) -> Any:
        draft = original(self, table, *given)
        if not changed:
            execute(old, "UPDATE callback SET last_error = 'second'")
            changed.append(table)
        return draft

    engine = make_engine(old.settings.dsn_of("owner"), "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Export, "write", write)
        Purge(engine, timedelta(days=90), tmp_path).run()
    engine.dispose()
    assert changed == ["callback"]
    (row,) = exported(tmp_path)["callback"]
    assert "second" in row
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.long
def test_services_go_on_beside_a_purge(cli: Any, old: Installation) -> None:
    """The planner plans and the starter runs the same intervals of the same pipelines that are
    being purged.
    """
    old.start("backfill-planner")
    old.start("instant-starter")
    engine = make_engine(old.settings.dsn_of("owner"), "test")

    def purge_all() -> int:
        return sum(
            Purge(engine, timedelta(days=90), page_backfills=1, batch_rows=2).run().rows.total() for _ in range(3)
        )

    with ThreadPoolExecutor(1) as threads:
        purging = threads.submit(purge_all)
        ids = [old.request(f"old-{n}", "2000-01-01", "2000-01-10", reprocess_behavior="completed") for n in (1, 2, 3)]
        for id in ids:
            assert old.wait_state(id, "succeeded", "failed") == "succeeded"
        assert purging.result(60) > 0
    engine.dispose()
    assert old.events(Topic.DEAD_LETTERS) == []
    # All intervals have later runs now.
    purge(cli)
    assert sorted(row["id"] for row in old.query("SELECT id FROM backfill")) == sorted(ids)
    assert old.value("SELECT count(*) FROM run") == 30
    assert sorted(row["id"] for row in old.query("SELECT DISTINCT backfill_id AS id FROM attempt")) == sorted(ids)
    assert {tuple(each.values()) for each in old.query("SELECT DISTINCT state, attempt FROM run")} == {("succeeded", 1)}
