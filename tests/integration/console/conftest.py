"""A console of an installation whose planner and run-starter work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.console import Web, start_console
from tests.support.definitions import daily
from tests.support.installation import Installation
from tests.support.servers import Servers
from tests.support.terminal import cli, point_at

__all__ = ["cli", "here", "place", "web"]
# Runs of these days fail, and hang.
FAILING, HANGING = "2020-01-03,2020-01-04", "2021-01-02,2021-01-03"


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[Installation]:
    made = servers.installation()
    made.start("backfill-planner")
    made.start("instant-starter", INSTANT_FAIL=FAILING, INSTANT_HANG=HANGING)
    made.apply(daily(max_active_runs=4, tasks=("extract", "load")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def web(place: Installation) -> Web:
    return start_console(place)


@pytest.fixture
def here(place: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the command line at the same installation."""
    point_at(place, monkeypatch)
