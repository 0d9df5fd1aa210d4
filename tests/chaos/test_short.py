"""A short selection of the scenarios, each under one seed; ``make chaos`` plays all of them for longer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.plays import SHORT
from tests.chaos.report import Result
from tests.chaos.running import run
from tests.chaos.servers import OwnServers
from tests.support.installation import Installation

SEEDS = {"short-crash-points": 11, "short-night": 12, "short-requests": 13, "short-servers": 14}


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnServers, Installation]]:
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


def check(result: Result) -> None:
    """Faults were really done, and every promise was kept."""
    assert result.faults and result.runs and result.events
    assert not result.violations, result.explain()


@pytest.mark.parametrize(
    "name",
    ["short-crash-points", *(pytest.param(name, marks=pytest.mark.long) for name in ("short-night", "short-requests"))],
)
def test_every_promise_is_kept(installation: Installation, name: str) -> None:
    check(run(name, SHORT[name], installation, SEEDS[name]))


@pytest.mark.embedded
def test_every_promise_is_kept_on_servers_that_die(own: tuple[OwnServers, Installation]) -> None:
    servers, made = own
    name = "short-servers"
    check(run(name, SHORT[name], made, SEEDS[name], servers=servers))


def test_each_of_the_selection_is_played() -> None:
    assert set(SEEDS) == set(SHORT)
