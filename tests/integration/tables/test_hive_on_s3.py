"""Partitions of a Hive metastore on a store that speaks S3: a publication renames and copies nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.hive import HiveLake, hive_server
from tests.support.seaweed import BUCKET, Seaweed

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def spark(store: Seaweed) -> Iterator[str]:
    with hive_server(**store.warehouse()) as remote:
        yield remote


@pytest.mark.parametrize("location", ["", f"s3a://{BUCKET}/external"], ids=["managed", "external"])
def test_a_day_is_published_replaced_emptied_and_undone(spark: str, store: Seaweed, location: str) -> None:
    with HiveLake(spark, "STORED AS PARQUET", location=location) as lake:
        lake.published(1, "a")
        before = set(store.objects(""))
        lake.published(2, "b")
        assert lake.content() == ["1 b"]
        lake.published(3)
        assert lake.content() == []
        assert before <= set(store.objects("")), "what was replaced stays where it was"
        lake.undo(4, undoes=3).publish()
        assert lake.content() == ["1 b"]
        lake.undo(5, undoes=2).publish()
        assert lake.content() == ["1 a"]
        attempt = lake.keeping(6, 1)
        attempt.stage(lake.table, "c")
        there = len(data(store))
        attempt.staging.discard()
        assert (len(data(store)), lake.content()) == (there - 1, ["1 a"])


def data(store: Seaweed) -> list[str]:
    return [name for name in store.objects("") if name.endswith(".parquet")]
