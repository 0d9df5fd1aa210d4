"""Pictures of all pages, dark and light: ``python -m tests.console.pictures [--only backfill-days]``.

Starts the embedded stack in a temporary directory, with the pipelines of ``sample.py``, and looks at
its console while backfills run. Writes ``docs/pictures/PAGE-light.png`` and ``…-dark.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, ViewportSize, expect

from retrofill_core.contract.topics import Topic
from retrofill_tools.client.connect import load_settings
from retrofill_tools.client.kafka import produce
from tests.console.browser import chromium
from tests.support.installation import ROOT

PICTURES = ROOT / "docs" / "pictures"
SAMPLE = Path(__file__).with_name("sample.py")
SIZE: ViewportSize = {"width": 1360, "height": 850}
# Larger files, for what the README shows.
SHARP = {"backfill-days", "backfill-hours"}
# Of 2,159 runs.
HALFWAY = re.compile(r"^(9\d\d|1\d{3})$")


@dataclass(frozen=True)
class Stack:
    """The running stack: commands go to it, its console is at ``url``."""

    home: Path

    @property
    def env(self) -> dict[str, str]:
        callbacks = json.dumps({"page_oncall": "tests.console.sample:page"})
        more = {"RETROFILL_HOME": str(self.home), "RETROFILL_CALLBACKS": callbacks, "PYTHONPATH": str(ROOT)}
        return {**os.environ, **more}

    def run(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("retrofill")), *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.env, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    @property
    def url(self) -> str:
        return str(self.json("status")["console"]["url"])

    def create(self, pipeline: str, first: str, last: str, id: str, *more: str) -> None:
        self.run("backfill", "create", pipeline, "--from", first, "--to", last, "--id", id, *more)


@contextmanager
def stack() -> Iterator[Stack]:
    """The embedded stack, stopped and removed at the end."""
    with tempfile.TemporaryDirectory(prefix="retrofill-pictures-") as home:
        made = Stack(Path(home))
        try:
            made.run("up")
            made.run("pipelines", "apply", str(SAMPLE))
            yield made
        finally:
            made.run("down")


def bad_letter(made: Stack) -> None:
    """A request that is no JSON, as a client with a bug sends it."""
    os.environ["RETROFILL_HOME"] = str(made.home)
    settings = load_settings()
    value = b'{"pipeline": "orders_daily", "from": 2024-01-01}'
    produce(settings, f"{settings.topic_prefix}{Topic.BACKFILL_REQUESTS}", b"nightly", value, [], 20)


def prepared(made: Stack) -> dict[str, str]:
    """Backfills that ended, and two that run. Returns the path of each page."""
    made.create("orders_daily", "2022-05-01", "2022-06-15", "orders-may", "--watch")
    for id, more in (("prices", ()), ("prices-again", ("--reprocess", "completed", "--review"))):
        conf = json.dumps({"out": str(made.home / "prices"), "corrected": id == "prices-again"})
        made.create("prices_daily", "2024-06-01", "2024-06-30", id, "--conf", conf, *more)
        if id == "prices":
            made.run("backfill", "watch", id)
    made.create("invoices_monthly", "2018-01-01", "2023-12-31", "invoices-again")
    made.create("orders_daily", "2023-01-01", "2023-12-31", "orders-2023", "--on-run-failure", "continue")
    bad_letter(made)
    made.create("orders_daily", "2024-01-01", "2024-12-31", "orders-2024")
    made.create("sensors_hourly", "2024-02-01", "2024-04-30", "sensors-spring")
    return {
        "backfills": "/",
        "backfill-days": "/backfills/orders-2024",
        "ask": "/new?pipeline=orders_daily&from=2022-03-01&to=2022-08-31",
        "backfill-hours": "/backfills/sensors-spring",
        "health": "/health",
        "pipelines": "/pipelines",
        "pipeline": "/pipelines/orders_daily",
        "deadlines": "/deadlines?state=missed",
        "callbacks": "/callbacks",
        "dead-letters": "/dead-letters",
        "review": "/backfills/prices-again",
        "run": "/runs/" + failed_run(made),
    }


def failed_run(made: Stack) -> str:
    """The id of the first failed run, once there is one."""
    with chromium() as browser:
        page = browser.new_page(base_url=made.url)
        page.goto("/backfills/orders-2024")
        link = page.get_by_role("region", name="Failed runs").get_by_role("link").first
        expect(link).to_be_visible(timeout=300_000)
        return str(link.get_attribute("href")).rpartition("/")[2]


def take(browser: Browser, url: str, name: str, path: str) -> None:
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        page = browser.new_page(
            base_url=url, viewport=SIZE, color_scheme=scheme, device_scale_factor=2 if name in SHARP else 1
        )
        page.goto(path)
        settled(page)
        if name == "backfill-hours":
            expect(page.get_by_role("progressbar").first).to_have_attribute("aria-valuenow", HALFWAY, timeout=600_000)
        if name == "review":
            compared(page)
        page.screenshot(path=PICTURES / f"{name}-{scheme}.png", animations="disabled", full_page=name == "run")
        page.close()


def compared(page: Page) -> None:
    """The comparison of a review is there."""
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("button", name="Compare again")).to_be_visible(timeout=120_000)
    page.get_by_role("heading", name="Review").scroll_into_view_if_needed()


def settled(page: Page) -> None:
    """All was read, and the fonts are there."""
    expect(page.get_by_role("heading").first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=30_000)
    expect(page.locator(".live")).to_have_text("live", timeout=30_000)
    page.evaluate("document.fonts.ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="the name of a page; repeatable")
    only = parser.parse_args().only
    PICTURES.mkdir(exist_ok=True)
    with stack() as made:
        pages = prepared(made)
        with chromium() as browser:
            for name, path in pages.items():
                if only is None or name in only:
                    take(browser, made.url, name, path)


if __name__ == "__main__":
    main()
