"""A short selection of the faults with one seed. ``make chaos`` plays all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.plays import SHORT
from tests.chaos.running import run
from tests.chaos.servers import OwnServers
from tests.support.forks import Nursery
from tests.support.installation import Installation

SEED = 11


@pytest.fixture
def own() -> Iterator[tuple[OwnServers, Installation]]:
    """Servers that may be killed, and an installation on them."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        servers = OwnServers(Path(home))
        # As in other tests: it starts services again and again.
        servers.nursery = Nursery()
        try:
            servers.start()
            made = servers.installation()
            try:
                yield servers, made
            finally:
                made.close()
        finally:
            servers.nursery.close()
            servers.stop()


@pytest.mark.embedded
def test_every_promise_is_kept(own: tuple[OwnServers, Installation]) -> None:
    """Every kind of fault was injected, every kind of work checked, and every promise kept."""
    servers, made = own
    (name,) = SHORT
    result = run(name, SHORT[name], made, SEED, servers=servers)
    assert not result.violations, result.explain()
    kinds = " ".join(result.faults)
    assert all(kind in kinds for kind in ("planner", "starter", "Kafka", "Postgres", "driver")), kinds
    assert result.runs and result.events
