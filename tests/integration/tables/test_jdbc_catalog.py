"""Iceberg with its catalog in Postgres, which commits by compare-and-set of a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.installation import Installation
from tests.support.lake import JDBC, Lake, Publisher, jdbc_catalog


@pytest.fixture
def lake(installation: Installation, table_server: str, tmp_path: Path) -> Iterator[Lake]:
    """An empty table in the catalog."""
    catalog = {**jdbc_catalog(installation.settings.dsn_of("owner")), ".warehouse": str(tmp_path / "warehouse")}
    with Lake(table_server, JDBC, tmp_path, catalog) as made:
        yield made


def test_rows_are_published_once_and_a_former_publisher_changes_nothing(lake: Lake) -> None:
    first = lake.attempt(run_id=1)
    first.stage(lake.table, "first")
    assert (lake.content(), len(lake.staged())) == ([], 1)
    former = Publisher(first).until("table:commit")
    assert Publisher(lake.attempt(run_id=1, attempt_id=50, number=1), of=first).finish() is None
    assert (lake.content(), lake.commits(), lake.staged()) == (["1 first"], 1, [])
    later = lake.attempt(run_id=2, attempt_id=60)
    later.stage(lake.table)
    later.publish()
    first.permitted = False
    assert former.finish() is not None
    assert (lake.content(), lake.commits()) == ([], 2)
