"""Iceberg with its catalog in Postgres, which commits by compare-and-set of a row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.installation import Installation
from tests.support.lake import JDBC, Lake, jdbc_catalog, published_once


@pytest.fixture
def lake(installation: Installation, table_server: str, tmp_path: Path) -> Iterator[Lake]:
    """An empty table in the catalog."""
    catalog = {**jdbc_catalog(installation.settings.dsn_of("owner")), ".warehouse": str(tmp_path / "warehouse")}
    with Lake(table_server, JDBC, tmp_path, catalog) as made:
        yield made


@pytest.mark.long
def test_rows_are_published_once_and_a_former_publisher_changes_nothing(lake: Lake) -> None:
    assert list(published_once(lake)) == ["staged", "published", "replaced"]
