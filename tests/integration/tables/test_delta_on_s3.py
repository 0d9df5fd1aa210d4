"""Delta on a store that speaks S3: commits are conditional writes, so drivers need not know of each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.support.lake import AMAZON_S3, HADOOP_S3, PATH, Lake, published_once, server
from tests.support.maven import jar, jars
from tests.support.proxy import Proxy
from tests.support.seaweed import BUCKET, Seaweed, seaweed

pytestmark = pytest.mark.long
DAYS = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed(tmp_path_factory.mktemp("store")) as made:
        yield made


@contextmanager
def spark(store: Seaweed, port: int, **more: str) -> Iterator[str]:
    """A Spark server of its own, whose tables are in the store."""
    libraries = ",".join(map(str, [jar(HADOOP_S3), *jars(AMAZON_S3)]))
    where = {"spark.jars": libraries, "spark.sql.warehouse.dir": f"s3a://{BUCKET}/warehouse"}
    with server(**store.s3a(port), **where, **more) as remote:
        yield remote


@pytest.fixture(scope="module")
def slow(store: Seaweed) -> Iterator[Proxy]:
    """A line to the store that the tests slow down."""
    with Proxy(("127.0.0.1", store.port)) as made:
        yield made


@pytest.fixture(scope="module")
def servers(store: Seaweed, slow: Proxy) -> Iterator[list[str]]:
    """Two Spark servers, which share nothing but the store."""
    with ExitStack() as on:
        yield [on.enter_context(spark(store, slow.port)) for _ in range(2)]


def test_rows_are_published_once_and_a_former_publisher_changes_nothing(servers: list[str], store: Seaweed) -> None:
    with Lake(servers[0], "delta", "") as lake:
        assert list(published_once(lake, "later")) == ["staged", "published", "replaced"]
        left = {name.split("/")[0] for name in store.objects("warehouse/") if "/" in name}
        assert left == {lake.table.rpartition(".")[2]}, "no file of a staged table is left"


def published_at_once(lakes: list[Lake], table: str, slow: Proxy) -> tuple[list[str], int]:
    """The rows and the commits of a table after two servers published different days of it at the same moments."""
    lakes[0].create(table)
    attempts = []
    for n, lake in enumerate(lakes):
        for day in range(1 + n, DAYS + 1, 2):
            attempt = lake.attempt(run_id=day, attempt_id=day, day=day)
            attempt.stage(table, f"of {n}", day=f"2013-01-0{day}")
            attempts.append(attempt)
    together = threading.Barrier(len(attempts))
    errors: list[BaseException] = []

    def publish(n: int) -> None:
        together.wait(60)
        try:
            attempts[n].publish()
        except BaseException as e:  # noqa: BLE001 - shown by the test
            errors.append(e)

    slow.delay = 0.1
    threads = [threading.Thread(target=publish, args=(n,)) for n in range(len(attempts))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    slow.mend()
    assert errors == []
    lakes[0].table = table
    return lakes[0].content(), lakes[0].commits()


def test_no_commit_of_two_servers_at_once_is_lost(servers: list[str], slow: Proxy) -> None:
    with Lake(servers[0], PATH, f"s3a://{BUCKET}/a") as one, Lake(servers[1], PATH, f"s3a://{BUCKET}/b") as two:
        found = published_at_once([one, two], f"delta.`s3a://{BUCKET}/shared`", slow)
        assert found == (["1 of 0", "2 of 1", "3 of 0", "4 of 1"], DAYS)
