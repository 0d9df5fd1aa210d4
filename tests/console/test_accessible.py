"""No serious finding of axe on any page, dark and light; all can be reached with keys."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.console.browser import SIZE
from tests.console.every_page import every_page, opened
from tests.console.test_flows import started
from tests.support.console import Web
from tests.support.definitions import daily
from tests.support.installation import Installation

SERIOUS = {"serious", "critical"}


def findings(page: Page, *rules: str) -> list[str]:
    """Of all rules, or of some."""
    found: dict[str, Any] = (
        Axe().run(page, options={"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}).response
    )
    return [
        f"{each['id']}: {node['html'][:160]}: {node.get('failureSummary', '')[:300]}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_page_has_a_serious_finding(installation: Installation, console: Web, browser: Browser) -> None:
    wrong: dict[str, list[str]] = {}
    context = browser.new_context(base_url=console.url, viewport=SIZE, color_scheme="light")
    page = context.new_page()
    for path in every_page(installation):
        opened(page, path)
        wrong[f"{path} light"] = findings(page)
        # The same page in other colors.
        page.emulate_media(color_scheme="dark")
        wrong[f"{path} dark"] = findings(page, "color-contrast")
        page.emulate_media(color_scheme="light")
    context.close()
    wrong = {page: found for page, found in wrong.items() if found}
    assert not wrong, "\n".join(f"{page}: {each}" for page, found in wrong.items() for each in found)


@pytest.mark.long
def test_a_backfill_can_be_asked_for_with_keys_alone(installation: Installation, console: Web, page: Page) -> None:
    started(installation)
    installation.apply(daily("orders"))
    page.goto("/new")
    page.get_by_label("Pipeline").focus()
    page.keyboard.press("Tab")
    page.keyboard.type("2024-01-01")
    page.keyboard.press("Tab")
    page.keyboard.type("2024-01-02")
    expect(page.get_by_role("button", name="Create 2 runs")).to_be_enabled()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Create 2 runs":
            break
    page.keyboard.press("Enter")
    expect(page.locator(".page-head .badge")).to_have_text("succeeded")
