"""Iceberg on a store that speaks S3, with its catalog in Postgres: no file system anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.installation import Installation
from tests.support.lake import JDBC, Lake, jdbc_catalog, published_once
from tests.support.s3 import BUCKET, KEY, S3, SECRET, s3_server


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    with s3_server(tmp_path, watched=False) as made:
        yield made


@pytest.fixture
def lake(installation: Installation, table_server: str, s3: S3, tmp_path: Path) -> Iterator[Lake]:
    """An empty table in the store."""
    store = {
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".warehouse": f"s3://{BUCKET}/warehouse",
        ".s3.endpoint": f"http://127.0.0.1:{s3.port}",
        ".s3.path-style-access": "true",
        ".s3.access-key-id": KEY,
        ".s3.secret-access-key": SECRET,
        ".client.region": "us-east-1",
    }
    with Lake(table_server, JDBC, tmp_path, {**jdbc_catalog(installation.settings.dsn_of("owner")), **store}) as made:
        yield made


def objects(s3: S3) -> list[str]:
    """The data files in the store."""
    return [path.name for path in s3.bucket.rglob("*.parquet")]


@pytest.mark.long
def test_rows_are_published_once_and_a_former_publisher_changes_nothing(lake: Lake, s3: S3) -> None:
    for about in published_once(lake, "later"):
        if about == "staged":
            assert len(objects(s3)) == 1
