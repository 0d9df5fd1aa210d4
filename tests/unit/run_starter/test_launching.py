"""A launch and the attempts before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from run_starter.host import launching
from run_starter.host.launching import Before


@pytest.mark.parametrize(
    ("retries", "timeout", "number", "asked"), [(1, None, 1, [7]), (1, 9.0, 1, [7]), (0, 9.0, 1, []), (1, None, 0, [])]
)
def test_tries_that_ended_drivers_count_for_tasks_with_retries(
    monkeypatch: pytest.MonkeyPatch, retries: int, timeout: float | None, number: int, asked: list[int]
) -> None:
    """With a time limit or without: code can also exit."""
    asked_for: list[int] = []
    fake = SimpleNamespace(
        earlier=lambda *_: [],
        unpublished=lambda *_: [],
        publishers=lambda *_: [],
        accepted_of=lambda *_: {},
        tries_used=lambda _, ids: asked_for.extend(ids),
    )
    monkeypatch.setattr(launching, "launches", fake)
    tasks = [SimpleNamespace(retries=0, timeout_seconds=9.0), SimpleNamespace(retries=retries, timeout_seconds=timeout)]
    runs = [SimpleNamespace(id=7, attempt=number)]
    batch: Any = SimpleNamespace(
        backfill=SimpleNamespace(id="b"), runs=runs, definition=SimpleNamespace(tasks=tasks), mode="each"
    )
    conn: Any = None
    Before.read(conn, [batch], [])
    assert asked_for == asked
