"""Starts real servers once per session; tests that need one get an installation of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support import jvm, reaper, scheduling, tiers
from tests.support.forks import Nursery
from tests.support.installation import ROOT, Installation
from tests.support.servers import Servers

# ``embedded``: Kafka and Postgres as Retrofill starts them. ``containers``: the official images.
# Read before the tests' environment variables are cleared.
STACK = os.environ.get("RETROFILL_TEST_STACK") or "embedded"
ON_CONTAINERS = STACK == "containers"
# Required free memory; a session's files take about a tenth of it.
MEMORY_BYTES = 8_000_000_000
# The second is Spark Connect, of the tests of tables.
SERVER_FIXTURES = {"servers", "table_server"}

WATCHER = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Watch this process, and restore Ctrl-C, which is ignored in processes started in the background."""
    if STACK not in ("embedded", "containers"):
        raise pytest.UsageError(f"RETROFILL_TEST_STACK is {STACK!r}: it is embedded or containers")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # An example that is slow on a busy machine is no failure.
    hypothesis.settings.register_profile("any machine", deadline=None)
    hypothesis.settings.load_profile("any machine")
    # A worker has those of the process that started it. To find them starts Java.
    if "JDK_JAVA_OPTIONS" not in os.environ:
        os.environ["JDK_JAVA_OPTIONS"] = jvm.options()
    config.stash[WATCHER] = reaper.watch()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the watcher, after all fixtures."""
    if watcher := config.stash.get(WATCHER, None):
        watcher.communicate()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Test tiers: ``make check`` uses ``--no-servers``, ``make verify`` ``--long --no-skips``."""
    parser.addoption("--long", action="store_true", help="run the tests marked long too (make verify does)")
    parser.addoption(
        "--no-servers", action="store_true", help="run only what is quick, and needs no Kafka, Postgres or Spark"
    )
    parser.addoption("--no-skips", action="store_true", help="a test that would be skipped fails, with the reason")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--no-servers``, leave out what is slow without them, too."""
    slow = config.getoption("--no-servers") and collection_path.suffix == ".py"
    return True if slow and collection_path.relative_to(ROOT).as_posix() in tiers.SLOW else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests outside the tier; on containers, also those that need the embedded servers."""
    excluded = [
        item
        for item in items
        if (item.get_closest_marker("long") and not config.getoption("--long"))
        or (_needs_servers(item) and config.getoption("--no-servers"))
        or (ON_CONTAINERS and (item.get_closest_marker("embedded") or item.get_closest_marker("spark")))
    ]
    config.hook.pytest_deselected(items=excluded)
    left = set(items).difference(excluded)
    # Keeps the order within a file.
    items[:] = sorted((item for item in items if item in left), key=lambda item: scheduling.place(_file(item)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, tests that share a server go to one worker, unless they are so many as with ``--long``."""
    if config.getoption("dist") != "loadfile" or config.getoption("--long"):
        return None
    return scheduling.by_shared_server(config, log)


def _needs_servers(item: pytest.Item) -> bool:
    starts_its_own = any(item.get_closest_marker(name) for name in ("embedded", "spark", "servers"))
    return starts_its_own or not SERVER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With ``--no-skips``, a skipped test fails."""
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and --no-skips is set: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """Clear all ``RETROFILL_*`` variables except the shared download cache."""
    for name in [name for name in os.environ if name.startswith("RETROFILL_") and name != "RETROFILL_CACHE"]:
        del os.environ[name]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """One Kafka and one Postgres for the session, with a template database."""
    home = reaper.make_folder(_in_memory())
    servers = _made_in(home)
    try:
        servers.start()
        servers.nursery = Nursery()
        yield servers
    finally:
        if servers.nursery is not None:
            servers.nursery.close()
        servers.stop()
        # A database and a dozen topics per test are 250,000 files: minutes in a process with many threads.
        subprocess.run(["rm", "-rf", home], check=True)


def _in_memory() -> Path | None:
    """The directory in memory for the servers' files, if there is room.

    No test here cuts the power, so a real disk would only be slower. The chaos tests use the disk.
    """
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > MEMORY_BYTES else None


def _made_in(home: Path) -> Servers:
    if not ON_CONTAINERS:
        return Servers(home)
    # Imported here: the embedded servers need no container engine.
    from tests.support.containers import ContainerServers

    return ContainerServers(home)


@pytest.fixture
def installation(servers: Servers) -> Iterator[Installation]:
    """A database and topics for one test; its processes end with the test."""
    made = servers.installation()
    try:
        yield made
    finally:
        made.close()
