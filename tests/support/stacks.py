"""Stacks of services for tests of one file, which each use a pipeline of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


def run_of(stack: Installation, id: str, day: str) -> dict[str, Any]:
    """The row of a day's only run in a backfill."""
    (row,) = stack.query("SELECT * FROM run WHERE backfill_id = %s AND interval_start = %s", id, f"{day}T00:00:00Z")
    return row


def attempts_of(stack: Installation, id: str) -> list[dict[str, Any]]:
    """All attempts of a backfill, in the order of their claims."""
    return stack.query("SELECT * FROM attempt WHERE backfill_id = %s ORDER BY id", id)


# with INSTANT_OUT


def days(out: Path) -> dict[str, str]:
    """What a reader of the folders sees, by day."""
    return {path.parent.name: path.read_text() for path in sorted(out.glob("day=*/part-*"))}


def written_by(stack: Installation, *ids: str) -> dict[str, str]:
    """What the days look like once these backfills are published, one after the other."""
    query = "SELECT id, interval_start FROM run WHERE backfill_id = %s ORDER BY id"
    rows = [row for id in ids for row in stack.query(query, id)]
    return {f"day={row['interval_start']:%Y-%m-%d}": f"run {row['id']}" for row in rows}
