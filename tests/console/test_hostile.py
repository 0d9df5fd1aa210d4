"""Text from other people is shown as text only; a login that ended and a broken address are each said in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from retrofill_core.contract.topics import Topic
from retrofill_core.setting_types import Role
from retrofill_tools.client.tokens import add, make
from tests.console.test_flows import started
from tests.support.console import Web, start_console
from tests.support.definitions import daily
from tests.support.installation import Installation

EVIL = '"><img src=x onerror="globalThis.hit = 1"><script>globalThis.hit = 1</script>'


def test_markup_in_what_others_wrote_is_shown_as_it_is(installation: Installation, console: Web, page: Page) -> None:
    started(installation)
    installation.apply(daily("orders"))
    id = installation.request("orders", "2024-01-01", "2024-01-02", triggered_by=EVIL, conf={EVIL: EVIL})
    installation.wait_state(id, "succeeded")
    installation.publish(Topic.BACKFILL_REQUESTS, EVIL, EVIL.encode(), headers={"ce_id": "1", "ce_type": EVIL})
    run = installation.value("SELECT max(id) FROM run")
    for path in ("/", f"/backfills/{id}", f"/runs/{run}", "/dead-letters"):
        page.goto(path)
        expect(page.get_by_text(EVIL[:20]).first).to_be_visible()
        assert page.locator("img[src=x]").count() == 0
        assert page.evaluate("globalThis.hit") is None


@pytest.mark.long
def test_a_wrong_address_is_said_in_a_line(console: Web, page: Page) -> None:
    for path, said in (
        ("/runs/%E0%A4", "There is no page /runs/%E0%A4."),
        ("/runs/7", "there is no run 7"),
        ("/runs/x", "id=x: use a number from 1"),
        ("/backfills/%3Cb%3E", "there is no backfill '<b>'"),
        ("/?limit=x", "limit=NaN: use a number"),
        ("/deadlines?state=late", "state=late: use one of armed"),
        ("/pipelines/nobody", "there is no pipeline 'nobody'"),
    ):
        page.goto(path)
        expect(page.get_by_role("main")).to_contain_text(said)
        expect(page.get_by_role("link", name="Health")).to_be_visible()


@pytest.mark.long
def test_who_is_logged_out_logs_in_again_on_the_same_page(
    installation: Installation, browser: Browser, tmp_path: Path
) -> None:
    secret, token = make("ada", Role.PUBLISH)
    add(tmp_path / "tokens", token)
    console = start_console(installation, RETROFILL_CONSOLE_TOKENS=str(tmp_path / "tokens"))
    installation.start("backfill-planner")
    installation.apply(daily("orders"))
    id = installation.request("orders", "2024-01-01", "2024-01-02")
    installation.outcome(id)
    context = browser.new_context(base_url=console.url)
    page = context.new_page()
    page.goto(f"/backfills/{id}")

    def log_in() -> None:
        page.get_by_label("Token").fill(secret)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        expect(page.locator(".live")).to_have_text("live")

    log_in()
    context.clear_cookies()
    page.get_by_role("button", name="Pause").click()
    log_in()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
    expect(page.locator(".page-head .badge")).to_contain_text("cancel")
    context.close()
