"""Delta on a store that speaks S3, where all commits to a table must be one Spark server's."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.support.lake import PATH, Lake, published_once, server
from tests.support.seaweed import BUCKET, Seaweed

pytestmark = pytest.mark.long
DAYS = 4


@pytest.fixture(scope="module")
def spark(store: Seaweed) -> Iterator[str]:
    """A Spark server whose tables are in the store."""
    with server(**store.warehouse()) as remote:
        yield remote


def test_rows_are_published_once_and_a_former_publisher_changes_nothing(spark: str, store: Seaweed) -> None:
    with Lake(spark, "delta", "") as lake:
        assert list(published_once(lake, "later")) == ["staged", "published", "replaced"]
        left = {name.split("/")[0] for name in store.objects("warehouse/") if "/" in name}
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
