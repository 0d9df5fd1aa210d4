"""On a telephone, no page and no table has to be moved sideways."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.console.every_page import every_page, opened
from tests.support.console import Web
from tests.support.installation import Installation

# What is wider than the window, and each table that is wider than its box.
WIDER = """() => [document.documentElement, ...document.querySelectorAll('.table-box')]
    .filter((each) => each.scrollWidth > each.clientWidth)
    .map((each) => `${each.ariaLabel ?? 'the page'}: ${each.scrollWidth} of ${each.clientWidth} pixels`)"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_nothing_is_wider_than_the_window(installation: Installation, console: Web, browser: Browser) -> None:
    paths = every_page(installation)
    context = browser.new_context(base_url=console.url, viewport={"width": 400, "height": 800}, has_touch=True)
    page = context.new_page()
    wider: dict[str, list[str]] = {}
    for path in paths:
        opened(page, path)
        if found := page.evaluate(WIDER):
            wider[path] = found
    assert not wider
    # Cards are still rows, and each cell says what it is.
    page.goto("/")
    row = page.get_by_role("row").filter(has_text="orders")
    expect(row.get_by_role("cell")).to_have_count(7)
    assert "Time left" in row.get_by_role("cell").nth(5).evaluate(
        "(cell) => getComputedStyle(cell, '::before').content"
    )
    context.close()
