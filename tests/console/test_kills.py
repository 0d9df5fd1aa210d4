"""The page stays right while processes are killed behind it."""

from __future__ import annotations

import re
from datetime import date

import pytest
from playwright.sync_api import Page, expect

from retrofill_core.contract.backfills import RunCancelRequested
from retrofill_core.contract.topics import Topic
from tests.console.test_flows import started
from tests.support.console import Web, start_console
from tests.support.definitions import daily
from tests.support.installation import Installation, until

DAYS = 60


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_console_that_is_killed_and_started_again_is_live_again(
    installation: Installation, console: Web, page: Page
) -> None:
    started(installation, INSTANT_SECONDS="0.2")
    installation.apply(daily("orders", max_active_runs=2))
    id = installation.request("orders", "2024-01-01", "2024-02-29")
    page.goto("/")
    page.get_by_role("link", name="orders").click()
    live = page.locator(".live")
    expect(live).to_have_text("live")
    expect(page.locator(".legend")).to_contain_text("succeeded")
    page.evaluate("globalThis.notReloaded = true")
    console.replica.kill()
    expect(live).to_contain_text("not live")
    # What happens meanwhile is seen afterwards.
    installation.wait_state(id, "succeeded")
    start_console(installation, RETROFILL_CONSOLE_PORT=console.url.rstrip("/").rpartition(":")[2])
    expect(live).to_have_text("live")
    expect(page.locator(".legend")).to_have_text(re.compile(rf"^\s*{DAYS} succeeded\s*$"))
    expect(page.locator(".page-head .badge")).to_have_text("succeeded")
    assert page.evaluate("globalThis.notReloaded") is True


@pytest.mark.long
@pytest.mark.timeout(300)
def test_services_that_are_killed_are_seen_to_come_back(installation: Installation, console: Web, page: Page) -> None:
    planner = installation.start("backfill-planner")
    starter = installation.start("instant-starter", INSTANT_SECONDS="0.1")
    installation.apply(daily("orders", max_active_runs=2))
    id = installation.request("orders", "2024-01-01", "2024-02-29")
    page.goto(f"/backfills/{id}")
    expect(page.locator(".legend")).to_contain_text("succeeded")
    for replica in (planner, starter):
        replica.kill()
    installation.start("backfill-planner")
    installation.start("instant-starter")
    installation.wait_state(id, "succeeded")
    expect(page.locator(".legend")).to_have_text(re.compile(rf"^\s*{DAYS} succeeded\s*$"))
    expect(page.get_by_role("progressbar", name="Progress", exact=True)).to_have_attribute("aria-valuenow", str(DAYS))


@pytest.mark.long
def test_what_could_not_be_read_is_read_again_without_an_event(
    installation: Installation, console: Web, page: Page
) -> None:
    started(installation)
    installation.apply(daily("orders"))
    id = installation.request("orders", "2024-01-01", "2024-01-05")
    installation.wait_state(id, "succeeded")
    page.route("**/api/v1/backfills/**", lambda route: route.fulfill(status=503, json={"error": "Postgres is away"}))
    page.goto(f"/backfills/{id}")
    expect(page.get_by_role("alert")).to_have_text("Postgres is away")
    page.unroute("**/api/v1/backfills/**")
    expect(page.locator(".legend")).to_contain_text("5 succeeded")
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.long
def test_a_change_is_seen_by_its_event_alone(installation: Installation, console: Web, page: Page) -> None:
    """How soon: ``make bench ONLY=console``."""
    started(installation, INSTANT_SECONDS="600")
    installation.apply(daily("orders", max_active_runs=1))
    id = installation.request("orders", "2024-01-01", "2024-01-05")
    until(lambda: installation.runs_by_state(id).get("running") == 1, "one runs")
    page.goto(f"/backfills/{id}")
    expect(page.locator(".legend")).to_contain_text("1 running")
    expect(page.locator(".live")).to_have_text("live")
    # The page cannot be read again.
    page.route("**/api/v1/backfills/**", lambda route: route.abort())
    installation.publish(Topic.BACKFILL_REQUESTS, id, RunCancelRequested(intervals=(date(2024, 1, 4),)))
    expect(page.locator(".legend")).to_contain_text("1 canceled")
