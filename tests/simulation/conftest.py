"""Fixture: a world with one replica of each service, for tests that replay an interleaving."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.shims import exchanged
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with exchanged():
        world = World(0)
        for service in world.services:
            world.start(service)
        yield world
        world.close()
