"""Stacks of services for tests of one file, which each use a pipeline of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.installation import Installation
from tests.support.servers import Servers


@pytest.fixture
def stack(installation: Installation) -> Installation:
    """An installation with a planner."""
    installation.start("backfill-planner")
    return installation


@contextmanager
def shared_stack(servers: Servers, **starter: str) -> Iterator[Installation]:
    """A planner and a run-starter with Spark-free drivers, whose environment is ``starter``."""
    made = servers.installation()
    try:
        made.start("backfill-planner", wait=False)
        made.start("instant-starter", starter)
        yield made
    finally:
        made.close()
