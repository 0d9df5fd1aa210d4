"""The real servers of a test session, and for each test that wants one an installation of its own on them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, Servers


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """The tests' settings are their own; only the cache of downloads is shared."""
    for name in [name for name in os.environ if name.startswith("RETROFILL_") and name != "RETROFILL_CACHE"]:
        del os.environ[name]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """One Kafka and one Postgres for the session, with a template database."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        servers = Servers(Path(home))
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


@pytest.fixture
def installation(servers: Servers) -> Iterator[Installation]:
    """A database and topics of its own; the processes that it starts end with the test."""
    made = servers.installation()
    try:
        yield made
    finally:
        made.close()
