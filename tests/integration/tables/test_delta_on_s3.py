"""Delta on a store that speaks S3, where all commits to a table must be one Spark server's."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.support.lake import AMAZON_S3, HADOOP_S3, PATH, Lake, published_once, server
from tests.support.maven import jar, jars
from tests.support.s3 import BUCKET, KEY, S3, SECRET, s3_server

pytestmark = pytest.mark.long
DAYS = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("store"), watched=False) as made:
        yield made


@pytest.fixture(scope="module")
def spark(store: S3) -> Iterator[str]:
    """A Spark server whose tables are in the store."""
    libraries = ",".join(map(str, [jar(HADOOP_S3), *jars(AMAZON_S3)]))
    options = {
        "endpoint": f"http://127.0.0.1:{store.port}",
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": KEY,
        "secret.key": SECRET,
    }
    s3a = {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()}
    with server(**s3a, **{"spark.jars": libraries, "spark.sql.warehouse.dir": f"s3a://{BUCKET}/warehouse"}) as remote:
        yield remote


def test_rows_are_published_once_and_a_former_publisher_changes_nothing(spark: str, store: S3) -> None:
    with Lake(spark, "delta", "") as lake:
        assert list(published_once(lake, "later")) == ["staged", "published", "replaced"]
        left = {path.relative_to(store.bucket / "warehouse").parts[0] for path in store.bucket.rglob("*.parquet")}
        assert left == {lake.table.rpartition(".")[2]}, "no file of a staged table is left"


def test_no_commit_of_one_server_at_once_is_lost(spark: str) -> None:
    with Lake(spark, PATH, f"s3a://{BUCKET}/at-once") as lake:
        attempts = [lake.attempt(run_id=day, attempt_id=day, day=day) for day in range(1, DAYS + 1)]
        for day, attempt in enumerate(attempts, 1):
            attempt.stage(lake.table, "staged", day=f"2013-01-0{day}")
        threads = [threading.Thread(target=attempt.publish) for attempt in attempts]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert lake.content() == [f"{day} staged" for day in range(1, DAYS + 1)]
        assert lake.commits() == DAYS
