"""Logins to the console."""

from __future__ import annotations

from typing import Any

import pytest

from retrofill.errors import UserError
from retrofill_console.login import COOKIE, KEEP_SECONDS, Login, Viewer
from retrofill_core.settings import Settings

TOKEN = "0123456789abcdef"
PROXIED: dict[str, Any] = {"console_user_header": "X-Forwarded-User", "console_proxies": ["10.1.0.0/16"]}


def login(now: float | None = None, **more: Any) -> Login:
    return Login(Settings.model_validate({"home": "/nowhere", **more}), now)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"console_host": "0.0.0.0"}, "lets others in without a login: set RETROFILL_CONSOLE_TOKEN_FILE"),
        ({"console_host": "console.example"}, "lets others in without a login"),
        ({"console_host": "127.corp.example.com"}, "lets others in without a login"),
        ({"console_token": "short"}, "RETROFILL_CONSOLE_TOKEN is too short"),
        ({"console_user_header": "X-User"}, "without RETROFILL_CONSOLE_PROXIES: anyone could send it"),
    ],
)
def test_what_would_let_anyone_in_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        login(**more)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_loopback_needs_no_login(host: str) -> None:
    found = login(console_host=host)
    assert found.kind == "none"
    assert isinstance(found.viewer({}, {}, "127.0.0.1"), Viewer)


def test_a_token_opens_it_for_programs() -> None:
    found = login(console_host="0.0.0.0", console_token=TOKEN)
    assert found.viewer({"authorization": f"Bearer {TOKEN}"}, {}, None) == Viewer("console", by_header=True)
    for wrong in ("", TOKEN, f"Bearer {TOKEN}0", "Bearer", f"Basic {TOKEN}"):
        assert found.viewer({"authorization": wrong}, {}, None) is None


def test_a_cookie_stands_for_the_token_until_it_ends_or_the_token_changes() -> None:
    cookie = {COOKIE: login(1000.0, console_token=TOKEN).cookie(" ada ")}
    assert login(1000.0 + KEEP_SECONDS - 1, console_token=TOKEN).viewer({}, cookie, None) == Viewer("ada")
    assert login(1000.0 + KEEP_SECONDS, console_token=TOKEN).viewer({}, cookie, None) is None
    assert login(1000.0, console_token=TOKEN + "0").viewer({}, cookie, None) is None


@pytest.mark.parametrize("name", ["Wałęsa", "山田", "José", "ÀÁ", "ada"])
def test_a_name_of_any_script_comes_through_a_proxy(name: str) -> None:
    found = login(**PROXIED)
    assert found.viewer({"x-forwarded-user": name.encode().decode("latin-1")}, {}, "10.1.2.3") == Viewer(name)


def test_a_name_that_is_really_latin_1_comes_through_a_proxy() -> None:
    assert login(**PROXIED).viewer({"x-forwarded-user": "Jos\xe9"}, {}, "10.1.2.3") == Viewer("José")


@pytest.mark.parametrize("wrong", ["", ".", "..", "9999999999.YWRh.", "9999999999.YWRh.00", "é.é.é"])
def test_a_cookie_that_nobody_signed_is_none(wrong: str) -> None:
    assert login(1000.0, console_token=TOKEN).viewer({}, {COOKIE: wrong}, None) is None


@pytest.mark.parametrize(
    ("peer", "name", "viewer"),
    [
        ("10.1.2.3", "ada", Viewer("ada")),
        ("10.2.2.3", "ada", None),
        ("10.1.2.3", " ", None),
        ("10.1.2.3", "a\tb", None),
        (None, "ada", None),
        ("a name", "ada", None),
    ],
)
def test_only_a_named_proxy_says_who_it_is(peer: str | None, name: str, viewer: Viewer | None) -> None:
    assert login(console_host="0.0.0.0", **PROXIED).viewer({"x-forwarded-user": name}, {}, peer) == viewer


def test_beside_a_proxy_a_token_works_too() -> None:
    found = login(console_token=TOKEN, **PROXIED)
    assert found.kind == "proxy"
    assert found.viewer({"authorization": f"bearer {TOKEN}"}, {}, "8.8.8.8") == Viewer("console", by_header=True)
