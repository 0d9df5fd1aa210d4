"""A browser for the package; a console with its services for a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.browser import SIZE, NoBrowser, chromium, files_page
from tests.support.console import Web, start_console
from tests.support.installation import Installation

# The machine may be busy; what must be fast is measured, not waited for.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Skipped where there is no Chromium.

    Not for the session: while Playwright is there, its event loop is the thread's, and other tests can run none.
    """
    try:
        with chromium() as started:
            yield started
    except NoBrowser as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def files(browser: Browser) -> Iterator[Page]:
    """A page that can import the modules, without any server."""
    page = files_page(browser)
    yield page
    page.close()


@pytest.fixture
def console(installation: Installation) -> Web:
    """A console of the installation; start its services in the test."""
    return start_console(installation)


@pytest.fixture
def page(browser: Browser, console: Web) -> Iterator[Page]:
    """A page of the console. The test fails if the page logged an error or had one blocked."""
    context = browser.new_context(base_url=console.url, viewport=SIZE)
    context.set_default_timeout(30_000)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "console",
        lambda said: (
            wrong.append(said.text)
            if said.type == "error" and "Failed to load" not in said.text and "ERR_" not in said.text
            else None
        ),
    )
    yield opened
    context.close()
    assert not wrong, wrong
