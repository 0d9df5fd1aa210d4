"""Fixtures for CLI commands against a real planner, with its own database and topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.servers import Servers
from tests.support.terminal import cli

__all__ = ["cli", "here", "planner"]


@pytest.fixture(scope="module")
def planner(servers: Servers) -> Iterator[dict[str, str]]:
    made = servers.installation()
    made.start("backfill-planner")
    yield made.environment()
    made.close()


@pytest.fixture
def here(planner: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Point the CLI at the installation."""
    for variable, value in planner.items():
        monkeypatch.setenv(variable, value)
    return planner
