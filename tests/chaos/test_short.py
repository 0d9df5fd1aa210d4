"""A short selection of the faults under one seed; ``make chaos`` plays all of them for longer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.plays import SHORT
from tests.chaos.running import run
from tests.chaos.servers import OwnServers
from tests.support.installation import Installation

SEED = 11


@pytest.fixture
def own() -> Iterator[tuple[OwnServers, Installation]]:
    """Servers that may be killed, and an installation on them."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        servers = OwnServers(Path(home))
        try:
            servers.start()
            made = servers.installation()
            try:
                yield servers, made
            finally:
                made.close()
        finally:
            servers.stop()


@pytest.mark.embedded
def test_every_promise_is_kept(own: tuple[OwnServers, Installation]) -> None:
    """Each kind of fault was really played, each kind of work was there to be judged, and every promise was kept."""
    servers, made = own
    (name,) = SHORT
    result = run(name, SHORT[name], made, SEED, servers=servers)
    assert not result.violations, result.explain()
    kinds = " ".join(result.faults)
    assert all(kind in kinds for kind in ("planner", "starter", "Kafka", "Postgres", "driver")), kinds
    assert result.runs and result.events
