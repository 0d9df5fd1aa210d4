"""A console with tokens asks for one, and records who requested."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from retrofill_core.setting_types import Role
from retrofill_tools.client.tokens import add, make
from tests.support.console import start_console
from tests.support.definitions import daily
from tests.support.installation import Installation


@pytest.mark.long
def test_who_logs_in_is_recorded_with_what_they_request(
    installation: Installation, browser: Browser, tmp_path: Path
) -> None:
    secret, token = make("ada", Role.PUBLISH)
    add(tmp_path / "tokens", token)
    console = start_console(installation, RETROFILL_CONSOLE_TOKENS=str(tmp_path / "tokens"))
    installation.start("backfill-planner")
    installation.apply(daily("orders"))
    context = browser.new_context(base_url=console.url)
    page = context.new_page()
    page.goto("/new?pipeline=orders&from=2024-01-01&to=2024-01-02")
    page.get_by_label("Token").fill("a-wrong-token-of-as-many")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Token").fill(secret)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Create 2 runs").click()
    expect(page.get_by_text("by ada")).to_be_visible()
    assert installation.value("SELECT triggered_by FROM backfill") == "ada"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    context.close()
