"""A Hive metastore in Postgres, a server of its own, of a newer release than Spark's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hive import HiveLake, hive_server
from tests.support.installation import Installation
from tests.support.metastore import metastore


@pytest.fixture
def spark(installation: Installation, tmp_path: Path) -> Iterator[str]:
    with (
        metastore(tmp_path, installation.settings.dsn_of("owner")) as address,
        hive_server(**{"spark.hadoop.hive.metastore.uris": address}) as remote,
    ):
        yield remote


@pytest.mark.long
def test_a_day_is_published_replaced_emptied_undone_and_deleted(spark: str) -> None:
    for storage in ("STORED AS PARQUET", "USING orc"):
        with HiveLake(spark, storage) as lake:
            lake.published(1, "a")
            lake.published(2, "b")
            lake.published(3)
            assert lake.content() == []
            lake.undo(4, undoes=3).publish()
            assert lake.content() == ["1 b"]
            lake.undo(5, undoes=2).publish()
            lake.undo(6, undoes=1).publish()
            assert (lake.content(), lake.partitions()) == ([], [])
            attempt = lake.keeping(7, 1)
            attempt.stage(lake.table, "c")
            there = len(lake.files())
            attempt.staging.discard()
            assert len(lake.files()) == there - 1
