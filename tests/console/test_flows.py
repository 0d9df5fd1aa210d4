"""Everyday use of the console, from the form to the end of a backfill, on real services."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from retrofill_core.contract.runs import SPARK_LOST
from retrofill_core.contract.topics import Topic
from tests.support.console import Web
from tests.support.definitions import alert, daily
from tests.support.installation import Installation, until

SERVICES = ("backfill-planner", "deadline-watcher", "callback-runner")


def started(installation: Installation, **instant: str) -> None:
    """All services, with drivers that do no work."""
    for name in SERVICES:
        installation.start(name)
    installation.start("instant-starter", instant)


def ask(page: Page, first: str, last: str) -> None:
    page.get_by_role("link", name="New backfill", exact=True).click()
    page.get_by_label("From").fill(first)
    page.get_by_label("To", exact=True).fill(last)


@pytest.mark.timeout(300)
def test_a_backfill_is_asked_for_watched_and_retried(installation: Installation, console: Web, page: Page) -> None:
    started(installation, INSTANT_FAIL="2024-01-05", INSTANT_SECONDS="0.05")
    installation.apply(daily("orders", tasks=("extract", "totals")))
    page.goto("/")
    expect(page.get_by_text("No backfills yet.")).to_be_visible()

    ask(page, "2024-01-01", "2024-01-10")
    beside = page.get_by_role("region", name="Dry run")
    expect(beside.get_by_text("none excluded")).to_be_visible()
    expect(beside.locator(".copies pre")).to_contain_text(
        "retrofill backfill create orders --from 2024-01-01 --to 2024-01-10"
    )
    assert installation.query("SELECT 1 FROM backfill") == [], "a dry run writes nothing"
    beside.get_by_role("button", name="Create 10 runs").click()

    expect(page).to_have_url(re.compile(r"/backfills/[0-9a-f-]{36}$"))
    id = page.url.rpartition("/")[2]
    # By events, without a reload.
    expect(page.locator(".page-head .badge")).to_have_text("failed")
    expect(page.get_by_role("progressbar", name="Progress", exact=True)).to_have_attribute(
        "aria-valuetext", re.compile("9 succeeded")
    )
    expect(page.locator(".failure summary")).to_have_text("extract: ValueError: this day fails")
    assert installation.wait_state(id, "failed")

    page.get_by_role("region", name="Failed runs").get_by_role("link", name="2024-01-05").click()
    expect(page.get_by_role("heading", name=re.compile("2024-01-05 run"))).to_be_visible()
    expect(page.get_by_role("img", name="extract; totals after extract")).to_be_visible()
    expect(page.get_by_role("region", name="Errors").get_by_text("this day fails")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Timeline: .*extract: failed"))).to_be_visible()
    form = page.get_by_role("link", name="Run again…")
    expect(form).to_have_attribute("href", re.compile("from=2024-01-05&to=2024-01-05"))

    page.go_back()
    page.get_by_role("button", name="Request again what failed").click()
    expect(page).not_to_have_url(re.compile(id))
    again = page.url.rpartition("/")[2]
    assert installation.wait_state(again, "failed")
    expect(page.locator(".failure summary")).to_have_text("extract: ValueError: this day fails")
    (row,) = installation.query("SELECT runs FROM backfill WHERE id = %s", again)
    assert row["runs"] == 1

    # What is searched for is in the address.
    page.goto("/")
    rows = page.get_by_role("table", name="Backfills").get_by_role("row")
    expect(rows).to_have_count(3)
    page.get_by_label("Search").fill(again[:8])
    expect(rows).to_have_count(2)
    page.reload()
    expect(rows).to_have_count(2)
    page.get_by_role("search").get_by_label("State").select_option("active")
    expect(page.get_by_text("No backfills like that.")).to_be_visible()

    page.goto("/pipelines/orders")
    coverage = page.get_by_role("region", name="Coverage")
    expect(coverage.locator(".legend")).to_contain_text(re.compile("9 succeeded.*1 failed.*never run"))
    coverage.get_by_role("application").focus()
    page.keyboard.press("Shift+ArrowDown")
    expect(coverage.get_by_role("link", name="Run what is missing…")).to_be_visible()

    # As if a Spark server had taken the last attempt along.
    lost = "UPDATE attempt SET error = %s WHERE backfill_id = %s RETURNING id"
    installation.query(lost, json.dumps({"type": SPARK_LOST, "message": "gone"}), again)
    page.goto("/health")
    expect(page.get_by_role("region", name="Pools").get_by_role("cell", name="in 1 of 10 minutes")).to_be_visible()


@pytest.mark.long
def test_an_overlap_is_shown_before_it_is_asked_for(installation: Installation, console: Web, page: Page) -> None:
    installation.start("backfill-planner")
    installation.apply(daily("orders"))
    id = installation.request("orders", "2024-01-01", "2024-01-10")
    installation.outcome(id)
    page.goto("/new?pipeline=orders&from=2024-01-05&to=2024-01-20")
    beside = page.get_by_role("region", name="Dry run")
    expect(beside.get_by_role("alert")).to_contain_text("overlap")
    expect(beside.get_by_role("link", name=id)).to_be_visible()
    expect(beside.get_by_role("button", name="Create backfill")).to_be_disabled()


@pytest.mark.long
def test_a_wrong_form_says_what_is_wrong(installation: Installation, console: Web, page: Page) -> None:
    installation.start("backfill-planner")
    installation.apply(daily("orders"))
    page.goto("/new")
    page.get_by_label("From").fill("2024-01-41")
    page.get_by_label("To", exact=True).fill("2024-02-01")
    expect(page.get_by_role("alert")).to_contain_text("from: day is out of range for month")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_range_is_selected_with_keys_and_cancelled(installation: Installation, console: Web, page: Page) -> None:
    started(installation, INSTANT_SECONDS="600")
    installation.apply(daily("orders", max_active_runs=2))
    id = installation.request("orders", "2024-01-01", "2024-01-31")
    installation.outcome(id)
    page.goto(f"/backfills/{id}")
    grid = page.get_by_role("application")
    grid.focus()
    page.keyboard.press("End")
    for _ in range(4):
        page.keyboard.press("Shift+ArrowUp")
    expect(page.get_by_role("group", name="Selected intervals")).to_contain_text("2024-01-27 – 2024-01-31")
    page.get_by_role("button", name="Cancel 5").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
    expect(page.locator(".legend")).to_contain_text("5 canceled")
    assert installation.runs_by_state(id)["cancelled"] == 5

    # The same without seeing the grid.
    page.get_by_text("Table", exact=True).click()
    page.get_by_label("State").select_option("cancelled")
    expect(page.get_by_role("region", name="Intervals").get_by_role("row")).to_have_count(6)


@pytest.mark.long
def test_pause_resume_and_cancel(installation: Installation, console: Web, page: Page) -> None:
    started(installation, INSTANT_SECONDS="600")
    installation.apply(daily("orders", max_active_runs=3))
    id = installation.request("orders", "2024-01-01", "2024-01-31", max_active_runs=2)
    installation.outcome(id)
    page.goto(f"/backfills/{id}")
    badge = page.locator(".page-head .badge")
    page.get_by_role("button", name="Pause").click()
    expect(badge).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(badge).to_have_text("running")
    concurrency = page.get_by_label("Concurrency")
    concurrency.fill("3")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_text("Concurrency: 3.")).to_be_visible()
    assert installation.value("SELECT max_active_runs FROM backfill") == 3
    until(lambda: installation.runs_by_state(id).get("running") == 2, "its seats are busy")

    run = installation.value("SELECT min(id) FROM run WHERE state = 'running'")
    page.goto(f"/runs/{run}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
    expect(badge).to_have_text("canceled")
    page.goto(f"/backfills/{id}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
    expect(badge).to_have_text("canceled")


@pytest.mark.long
def test_a_click_on_a_cell_opens_its_run(installation: Installation, console: Web, page: Page) -> None:
    started(installation)
    installation.apply(daily("orders"))
    id = installation.request("orders", "2024-01-01", "2024-01-14")
    installation.wait_state(id, "succeeded")
    page.goto(f"/backfills/{id}")
    canvas = page.locator(".grid-box canvas")
    # The second week's Wednesday: cells of 32 pixels below twenty of labels.
    canvas.hover(position={"x": 48, "y": 100})
    expect(page.locator(".hint")).to_contain_text("2024-01-10")
    canvas.click(position={"x": 48, "y": 100})
    expect(page.get_by_role("heading", name=re.compile("2024-01-10 run"))).to_be_visible()


@pytest.mark.long
def test_dead_letters_are_published_again(installation: Installation, console: Web, page: Page) -> None:
    installation.start("backfill-planner")
    installation.publish(
        Topic.BACKFILL_REQUESTS, "b-1", b"{not json", headers={"ce_id": "1", "ce_type": "BackfillRequested"}
    )
    page.goto("/dead-letters")
    letter = page.get_by_role("listitem").filter(has_text="backfill-requests")
    expect(letter).to_have_count(1)
    expect(letter).to_contain_text("b-1")
    letter.get_by_role("button", name="Publish again").click()
    # It is still no JSON.
    expect(page.get_by_role("listitem").filter(has_text="backfill-requests")).to_have_count(2)


@pytest.mark.long
def test_of_a_large_dead_letter_the_start_is_shown(installation: Installation, console: Web, page: Page) -> None:
    installation.start("backfill-planner")
    installation.publish(Topic.BACKFILL_REQUESTS, "b-1", b"{" + b"x" * 500_000)
    page.goto("/dead-letters")
    letter = page.get_by_role("listitem").filter(has_text="backfill-requests")
    letter.get_by_text("Message", exact=True).click()
    expect(letter).to_contain_text("The first 10,000 characters of 500,001 bytes.")
    expect(letter.get_by_role("button", name="Copy the message")).to_have_count(0)


@pytest.mark.long
def test_a_request_that_was_refused_can_be_made_otherwise(installation: Installation, console: Web, page: Page) -> None:
    installation.start("backfill-planner")
    installation.apply(daily("orders"))
    page.goto("/")
    ask(page, "2024-01-01", "2024-01-10")
    beside = page.get_by_role("region", name="Dry run")
    expect(beside.get_by_role("button", name="Create 10 runs")).to_be_enabled()
    # Somebody else is faster.
    other = installation.request("orders", "2024-01-05", "2024-01-05")
    installation.outcome(other)
    beside.get_by_role("button", name="Create 10 runs").click()
    expect(beside.get_by_role("alert")).to_contain_text(f"backfill {other} of orders is running")
    page.get_by_label("From").fill("2024-02-01")
    page.get_by_label("To", exact=True).fill("2024-02-03")
    beside.get_by_role("button", name="Create 3 runs").click()
    expect(page).to_have_url(re.compile(r"/backfills/[0-9a-f-]{36}$"))
    installation.wait_published()
    assert installation.events(Topic.DEAD_LETTERS) == []


@pytest.mark.long
def test_many_failed_callbacks_are_called_again(installation: Installation, console: Web, page: Page) -> None:
    for name in SERVICES:
        installation.start(name)
    installation.apply(daily("orders", deadlines=[alert("slow", "RUN_QUEUED_AT", 0.1, callback="nobody")]))
    installation.request("orders", "2024-01-01", "2024-05-01")
    until(
        lambda: installation.value("SELECT count(*) FROM callback WHERE state = 'failed'") == 122,
        "all callbacks failed",
    )
    page.goto("/callbacks?state=failed")
    page.get_by_role("button", name="Call 122 failed again").click()
    expect(page.get_by_text("122 callbacks called again.")).to_be_visible(timeout=120_000)


@pytest.mark.long
def test_deadlines_callbacks_pipelines_and_health(installation: Installation, console: Web, page: Page) -> None:
    started(installation, INSTANT_SECONDS="600")
    installation.apply(daily("orders", deadlines=[alert("slow", "RUN_STARTED_AT", 0.2, callback="nobody")]))
    id = installation.request("orders", "2024-01-01", "2024-01-01")
    installation.outcome(id)
    page.goto("/deadlines")
    expect(page.get_by_role("row").filter(has_text="slow").filter(has_text="missed")).to_have_count(1)
    page.get_by_role("link", name="Callbacks").click()
    expect(page.get_by_role("row").filter(has_text="nobody")).to_have_count(1)
    page.get_by_role("link", name="Pipelines").click()
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("region", name="Last backfills").get_by_text(id)).to_be_visible()
    page.get_by_role("link", name="Health").click()
    for name in (*SERVICES, "run-starter"):
        expect(page.get_by_role("row").filter(has_text=name).filter(has_text="up to date").first).to_be_visible()
    expect(page.get_by_role("region", name="Live attempts").get_by_text("running").first).to_be_visible()


def test_a_review_is_asked_for_and_published_on_its_page(
    installation: Installation, console: Web, page: Page, tmp_path: Path
) -> None:
    started(installation, INSTANT_OUT=str(tmp_path))
    installation.apply(daily("orders"))
    page.goto("/")
    ask(page, "2024-01-01", "2024-01-03")
    page.get_by_text("More options").click()
    page.get_by_label("Publish only after a review").check()
    beside = page.get_by_role("region", name="Dry run")
    expect(beside.locator(".copies pre")).to_contain_text("--review")
    beside.get_by_role("button", name="Create 3 runs").click()
    # By events, without a reload.
    expect(page.locator(".page-head .badge")).to_have_text("in review")
    expect(page.get_by_role("progressbar", name="Progress", exact=True)).to_have_attribute(
        "aria-valuetext", re.compile("3 staged")
    )
    assert list(tmp_path.glob("day=*")) == []
    review = page.get_by_role("region", name="Review")
    review.get_by_role("button", name="Compare").click()
    # Here is no Spark.
    expect(review.get_by_role("alert")).to_contain_text("set RETROFILL_SPARK_REMOTE to a server")
    # One day, and then the others.
    page.get_by_role("application").focus()
    page.keyboard.press("Shift+Home")
    page.get_by_role("button", name="Publish these 1").click()
    expect(page.get_by_role("progressbar", name="Progress", exact=True)).to_have_attribute(
        "aria-valuetext", re.compile("1 succeeded, 2 staged|2 staged, 1 succeeded")
    )
    assert len(list(tmp_path.glob("day=*/part-*"))) == 1
    # The run ends before the next review begins.
    expect(page.locator(".page-head .badge")).to_have_text("in review")
    expect(page.get_by_role("button", name="Discard")).to_be_visible()
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".page-head .badge")).to_have_text("succeeded")
    assert len(list(tmp_path.glob("day=*/part-*"))) == 3
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("dialog")).to_contain_text("Restore what 3 runs replaced?")
    page.get_by_role("button", name="Undo them").click()
    # The page of the undo.
    expect(page.get_by_text("undoes", exact=True)).to_be_visible()
    expect(page.locator(".page-head .badge")).to_have_text("succeeded")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    assert list(tmp_path.glob("day=*/part-*")) == []
