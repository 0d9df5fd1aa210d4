"""The grid draws as many intervals as anybody has. How fast: ``make bench ONLY=console``."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.console.browser import measured


@pytest.mark.long
@pytest.mark.parametrize("count", [10_000, 100_000])
def test_it_mounts_pans_and_fills(files: Page, count: int) -> None:
    for what, argument in (("mount", count), ("draw", 3), ("pan", 5), ("fill", 5)):
        assert measured(files, what, argument) > 0
