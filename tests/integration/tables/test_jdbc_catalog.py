"""Iceberg with its catalog in Postgres, which commits by compare-and-set of a row, and its data in files or S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.support.installation import Installation
from tests.support.lake import JDBC, Lake, Publisher
from tests.support.s3 import BUCKET, KEY, S3, SECRET, s3_server


@pytest.fixture(params=["files", "S3"])
def lake(
    request: pytest.FixtureRequest, installation: Installation, table_server: str, tmp_path: Path
) -> Iterator[Lake]:
    """An empty table in the catalog."""
    dsn = conninfo_to_dict(installation.settings.dsn_of("owner"))
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:postgresql://{dsn['host']}:{dsn['port']}/{dsn['dbname']}",
        ".jdbc.user": str(dsn["user"]),
        ".jdbc.password": str(dsn.get("password") or ""),
        ".warehouse": str(tmp_path / "warehouse"),
    }
    with ExitStack() as servers:
        if request.param == "S3":
            catalog |= in_s3(servers.enter_context(s3_server(tmp_path)))
        yield servers.enter_context(Lake(table_server, JDBC, tmp_path, catalog))


def in_s3(server: S3) -> dict[str, str]:
    """Settings of a catalog whose tables are in the bucket."""
    return {
        ".warehouse": f"s3://{BUCKET}/warehouse",
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".s3.endpoint": f"http://127.0.0.1:{server.port}",
        ".s3.path-style-access": "true",
        ".s3.access-key-id": KEY,
        ".s3.secret-access-key": SECRET,
        ".client.region": "us-east-1",
    }


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
