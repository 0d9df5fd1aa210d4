"""The address of each page, with something to see on it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.console.test_flows import started
from tests.support.definitions import alert, daily
from tests.support.installation import Installation


def every_page(installation: Installation) -> list[str]:
    """The paths, after a backfill of which a run failed."""
    started(installation, INSTANT_FAIL="2024-01-05")
    installation.apply(daily("orders", tasks=("extract", "totals"), deadlines=[alert("slow", "RUN_STARTED_AT", 60)]))
    id = installation.request("orders", "2024-01-01", "2024-01-20")
    installation.wait_state(id, "failed")
    run = installation.value("SELECT id FROM run WHERE state = 'failed'")
    lists = ("pipelines", "pipelines/orders", "deadlines", "callbacks", "dead-letters", "health", "nowhere")
    form = "/new?pipeline=orders&from=2024-01-01&to=2024-03-20"
    return ["/", f"/backfills/{id}", f"/runs/{run}", form, *(f"/{each}" for each in lists)]


def opened(page: Page, path: str) -> None:
    """Go there and wait until all is read."""
    page.goto(path)
    expect(page.get_by_role("heading").first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
