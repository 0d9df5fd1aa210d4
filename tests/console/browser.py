"""The Chromium of the tests: that of ``CHROMIUM``, one on the PATH, or Playwright's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Error, Page, Route, ViewportSize, sync_playwright

STATIC = Path(__file__).parents[2] / "services" / "retrofill_console" / "static"
# Nobody answers there: requests are answered from the files.
FILES = "http://files.invalid"
SIZE: ViewportSize = {"width": 1360, "height": 860}


class NoBrowser(Exception):
    """Says in one line what to install."""


@contextmanager
def chromium(**more: Any) -> Iterator[Browser]:
    """A headless Chromium. Raises ``NoBrowser``."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    # As root, in containers, it has no sandbox of its own; it opens only pages of this repository.
    sandboxed = os.geteuid() != 0
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, chromium_sandbox=sandboxed, **more)
        except Error as e:
            raise NoBrowser(
                f"no Chromium: install Debian's package chromium or set CHROMIUM: {e}".splitlines()[0]
            ) from e
        try:
            yield browser
        finally:
            browser.close()


def files_page(browser: Browser) -> Page:
    """An empty page that can import the console's modules, without a console."""
    page = browser.new_page(viewport=SIZE)
    page.route(f"{FILES}/**", _answer)
    page.goto(f"{FILES}/empty")
    return page


def _answer(route: Route) -> None:
    path = route.request.url.removeprefix(f"{FILES}/")
    if path == "empty":
        styles = "".join(
            f'<link rel="stylesheet" href="/static/style/{name}.css">' for name in ("base", "parts", "pages")
        )
        route.fulfill(content_type="text/html", body=f"<!doctype html>{styles}<main id=app></main>")
    elif path.startswith("tests/"):
        route.fulfill(path=Path(__file__).with_name(path.removeprefix("tests/")))
    else:
        route.fulfill(path=STATIC / path.removeprefix("static/"))


def measured(page: Page, what: str, argument: int) -> float:
    """Milliseconds of a function of ``speed.js`` in a page of ``files_page``."""
    found: Any = page.evaluate(
        f"async (argument) => (await import('/tests/speed.js')).{what}(argument)",
        argument,
    )
    return float(found)
