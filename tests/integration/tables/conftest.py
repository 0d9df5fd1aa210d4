"""A real Spark Connect server with both table formats, started once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hive import hive_server
from tests.support.lake import FORMATS, Lake, server
from tests.support.metastore import metastore
from tests.support.seaweed import Seaweed, seaweed
from tests.support.servers import Servers

# Compiling code for each expression takes longer than evaluating it for a few rows. With --long, Spark is as users have it.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


# Where Delta differs most from Iceberg: the fence at its commit.
DELTA = "test_a_publisher_woken_after_a_later_run_changes_nothing"


def pytest_itemcollected(item: pytest.Item) -> None:
    """In Delta, which needs several times Iceberg's CPU time for the same, ``make test`` tries only what differs."""
    if "[delta" in item.name and not item.name.startswith(DELTA):
        item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def table_server(pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of the server."""
    with server(**({} if pytestconfig.getoption("--long") else INTERPRETED)) as remote:
        yield remote


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """An object store."""
    with seaweed(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture(scope="module")
def embedded_metastore() -> Iterator[str]:
    """The address of a Spark server with a Hive metastore inside."""
    with hive_server() as remote:
        yield remote


@pytest.fixture(scope="module")
def standalone_metastore(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same with a metastore of its own."""
    with (
        metastore(servers.settings.dsn_of("owner"), tmp_path_factory.mktemp("metastore")) as conf,
        hive_server(**conf) as remote,
    ):
        yield remote


@pytest.fixture(autouse=True)
def connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a driver that uses Connect; other tests start drivers that do not."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, table_server: str, tmp_path: Path) -> Iterator[Lake]:
    """An empty table of each format, with a column for the day."""
    with Lake(table_server, str(request.param), tmp_path) as made:
        yield made
