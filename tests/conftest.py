"""The real servers of a test session, and for each test that wants one an installation of its own on them."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, Servers

# ``embedded``: Kafka and Postgres as Retrofill starts them; ``containers``: as the official images have them. Read before
# the tests' own settings are cleared.
STACK = os.environ.get("RETROFILL_TEST_STACK") or "embedded"
ON_CONTAINERS = STACK == "containers"
# The files of a session are a tenth of that.
MEMORY_BYTES = 8_000_000_000


def pytest_configure() -> None:
    """Ctrl-C ends what the tests start, though the tests themselves were started in the background, where it is ignored."""
    if STACK not in ("embedded", "containers"):
        raise pytest.UsageError(f"RETROFILL_TEST_STACK is {STACK!r}: it is embedded or containers")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Java processes of tests live for a minute: what its second compiler takes then, the tests lack.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The tiers: ``make check`` passes ``--no-servers``, ``make verify`` passes ``--long --no-skips``."""
    parser.addoption("--long", action="store_true", help="run the tests marked long too (make verify does)")
    parser.addoption("--no-servers", action="store_true", help="run only what needs no Kafka, Postgres or Spark")
    parser.addoption("--no-skips", action="store_true", help="a test that would be skipped fails, with the reason")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the tier leaves out, and on containers what starts, kills or reads the folder of embedded servers."""
    excluded = [
        item
        for item in items
        if (item.get_closest_marker("long") and not config.getoption("--long"))
        or (_needs_servers(item) and config.getoption("--no-servers"))
        or (ON_CONTAINERS and (item.get_closest_marker("embedded") or item.get_closest_marker("spark")))
    ]
    config.hook.pytest_deselected(items=excluded)
    items[:] = [item for item in items if item not in excluded]


def _needs_servers(item: pytest.Item) -> bool:
    starts_its_own = any(item.get_closest_marker(name) for name in ("embedded", "spark", "servers"))
    return starts_its_own or "servers" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With ``--no-skips`` a skip is a failure: what was not run was not verified."""
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and --no-skips is set: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """The tests' settings are their own; only the cache of downloads is shared."""
    for name in [name for name in os.environ if name.startswith("RETROFILL_") and name != "RETROFILL_CACHE"]:
        del os.environ[name]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """One Kafka and one Postgres for the session, with a template database."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-", dir=_in_memory()) as home:
        servers = _made_in(Path(home))
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


def _in_memory() -> Path | None:
    """Where there is much room in memory, the servers' files are there: no test here cuts the power, so all that waiting for
    the disk shows is how slow it is. Chaos stays on the disk."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > MEMORY_BYTES else None


def _made_in(home: Path) -> Servers:
    if not ON_CONTAINERS:
        return Servers(home)
    # Imported late: who runs on the embedded servers needs no engine of containers.
    from tests.support.containers import ContainerServers

    return ContainerServers(home)


@pytest.fixture
def installation(servers: Servers) -> Iterator[Installation]:
    """A database and topics of its own; the processes that it starts end with the test."""
    made = servers.installation()
    try:
        yield made
    finally:
        made.close()
