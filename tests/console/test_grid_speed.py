"""The grid draws ten thousand intervals without a stutter, and a hundred thousand usably."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

FRAME_MS = 1000 / 60


def measured(page: Page, what: str, argument: int) -> float:
    found: Any = page.evaluate(
        f"async (argument) => (await import('/tests/speed.js')).{what}(argument)",
        argument,
    )
    return float(found)


@pytest.mark.parametrize(("count", "mount_ms"), [(10_000, 500), (100_000, 2_000)])
def test_it_mounts_pans_and_fills_fast(files: Page, count: int, mount_ms: float) -> None:
    assert measured(files, "mount", count) <= mount_ms
    assert measured(files, "draw", 60) <= FRAME_MS / 2
    # The tests' machine is busy: every second frame may be another program's.
    assert measured(files, "pan", 120) <= 2.1 * FRAME_MS
    assert measured(files, "fill", 120) <= 2.1 * FRAME_MS
