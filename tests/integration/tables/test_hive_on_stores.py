"""Partitions of a Hive metastore on HDFS and on a store that speaks S3: a publication renames and copies nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.hdfs import Hdfs, hdfs
from tests.support.hive import HiveLake, hive_server
from tests.support.seaweed import BUCKET, Seaweed

from retrofill.sdk.texts import Table

pytestmark = pytest.mark.long

Storage = Seaweed | Hdfs


@pytest.fixture(scope="module", params=["s3", "hdfs"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """Where the tables are."""
    if request.param == "s3":
        yield request.getfixturevalue("store")
    else:
        with hdfs(tmp_path_factory.mktemp("hdfs")) as made:
            yield made


@pytest.fixture(scope="module")
def spark(storage: Storage) -> Iterator[str]:
    with hive_server(**storage.warehouse()) as remote:
        yield remote


def address(storage: Storage, folder: str) -> str:
    return f"{storage.address if isinstance(storage, Hdfs) else f's3a://{BUCKET}'}/{folder}"


@pytest.mark.parametrize("folder", ["", "external"], ids=["managed", "external"])
def test_a_day_is_published_replaced_emptied_and_undone(spark: str, storage: Storage, folder: str) -> None:
    with HiveLake(spark, "STORED AS PARQUET", location=folder and address(storage, folder)) as lake:
        lake.published(1, "a")
        before = data(storage)
        lake.published(2, "b")
        assert lake.content() == ["1 b"]
        lake.published(3)
        assert lake.content() == []
        assert before.items() <= data(storage).items(), "what was replaced stays where it was"
        lake.undo(4, undoes=3).publish()
        assert lake.content() == ["1 b"]
        lake.undo(5, undoes=2).publish()
        assert lake.content() == ["1 a"]
        attempt = lake.keeping(6, 1)
        attempt.stage(lake.table, "c")
        there = len(data(storage))
        attempt.staging.discard()
        assert (len(data(storage)), lake.content()) == (there - 1, ["1 a"])


def test_directories_that_people_have_become_a_table_that_lists_them(spark: str, storage: Storage) -> None:
    """As the documentation says: two statements, and nothing of theirs is moved, copied or deleted."""
    with HiveLake(spark, "USING parquet", location=address(storage, "people/orders")) as lake:
        rows = lake.keeping(1, 1).rows(*((f"2013-01-0{day}", day, f"old {day}") for day in (1, 2)))
        rows.write.partitionBy("day").parquet(lake.location, mode="append")
        theirs = {name: at for name, at in data(storage).items() if name.startswith("people/orders/day=")}
        assert len(theirs) == 2
        lake.spark.sql(f"MSCK REPAIR TABLE {lake.table}")
        assert lake.content() == ["1 old 1", "2 old 2"]
        lake.published(2, "new")
        assert lake.content() == ["1 new", "2 old 2"]
        lake.undo(3, undoes=2).publish()
        assert lake.content() == ["1 old 1", "2 old 2"]
        assert theirs.items() <= data(storage).items()


def test_what_a_script_writes_into_the_directory_that_it_gets_is_published_and_undone(
    spark: str, storage: Storage
) -> None:
    with HiveLake(spark, "USING parquet", location=address(storage, "people/scripts")) as lake:
        lake.spark.sql(f"INSERT INTO {lake.table} (n, note, day) VALUES (7, 'old', DATE'2013-01-01')").collect()
        theirs = data(storage)
        attempt = lake.keeping(1, 1)
        tables = attempt.staging.tables
        directory = tables.location(lake.spark, tables.lend("a", lake.spark, Table(lake.table, "day")))
        assert directory.startswith(f"{lake.location}/_retrofill/")
        attempt.rows(("2013-01-01", 1, "new")).write.mode("overwrite").partitionBy("day").parquet(directory)
        assert lake.content() == ["1 old"]
        tables.take_back("a", lake.spark)
        attempt.outputs = attempt.staging.seal()
        attempt.publish()
        assert lake.content() == ["1 new"]
        lake.undo(2, undoes=1).publish()
        assert lake.content() == ["1 old"]
        assert theirs.items() <= data(storage).items()


def data(storage: Storage) -> dict[str, object]:
    return {name: at for name, at in storage.files().items() if name.endswith(".parquet")}
