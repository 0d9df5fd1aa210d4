"""Logins to the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retrofill.errors import UserError, WrongUsage
from retrofill_console.login import COOKIE, Login, Viewer
from retrofill_core.setting_types import Role
from retrofill_core.settings import Settings
from retrofill_tools.client.tokens import add, make, revoke, stored

PROXIED: dict[str, Any] = {"console_user_header": "X-Forwarded-User", "console_proxies": ["10.1.0.0/16"]}


def login(**more: Any) -> Login:
    return Login(Settings.model_validate({"home": "/nowhere", **more}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def created(file: Path, user: str, role: Role = Role.READ) -> str:
    secret, token = make(user, role)
    add(file, token)
    return secret


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"console_host": "0.0.0.0"}, "lets others in without a login: set RETROFILL_CONSOLE_TOKENS"),
        ({"console_host": "console.example"}, "lets others in without a login"),
        ({"console_host": "127.corp.example.com"}, "lets others in without a login"),
        ({"console_tokens": "/"}, "the file of tokens cannot be read: Is a directory: /"),
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
    viewer = found.viewer({}, {}, "127.0.0.1")
    assert viewer is not None and viewer.role == Role.OPERATE


def test_a_token_is_of_its_user_and_role_until_it_is_revoked(file: Path) -> None:
    found = login(console_host="0.0.0.0", console_tokens=file)
    assert found.viewer(bearer("retrofill_none"), {}, None) is None
    ada, bob = created(file, "Ada Lovelace", Role.PUBLISH), created(file, "bob")
    assert found.viewer(bearer(ada), {}, None) == Viewer("Ada Lovelace", Role.PUBLISH, by_header=True)
    assert found.viewer({}, {COOKIE: bob}, None) == Viewer("bob", Role.READ)
    for wrong in ("", ada, f"Bearer {ada}0", "Bearer", f"Basic {ada}"):
        assert found.viewer({"authorization": wrong}, {}, None) is None
    assert (revoke(file, "Ada Lovelace"), revoke(file, "nobody")) == (1, 0)
    assert found.viewer(bearer(ada), {}, None) is None
    assert found.viewer(bearer(bob), {}, None) is not None
    file.unlink()
    assert found.viewer(bearer(bob), {}, None) is None


def test_a_user_may_have_several_tokens_with_roles_of_their_own(file: Path) -> None:
    by_hand, of_a_program = created(file, "ada", Role.OPERATE), created(file, "ada", Role.REQUEST)
    found = login(console_tokens=file)
    assert [found.holder(each) for each in (by_hand, of_a_program)] == [
        Viewer("ada", Role.OPERATE),
        Viewer("ada", Role.REQUEST),
    ]
    assert revoke(file, "ada") == 2
    assert found.holder(by_hand) is None


def test_no_token_is_stored(file: Path) -> None:
    assert created(file, "ada") not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("owner 00 ada", "the role is not one of read, request, publish, operate"),
        ("read 00 ada", "the text after the role is not a SHA-256"),
        (f"read {'0' * 64}", "it names no user"),
        ("read", "the text after the role is not a SHA-256"),
    ],
)
def test_a_line_that_is_no_token_is_named_and_keeps_nobody_else_out(file: Path, line: str, said: str) -> None:
    file.write_text(f"# people\n\n{line}")
    token = created(file, "ada")
    (known,), (wrong,) = stored(file)
    assert known.user == "ada"
    assert wrong.startswith(f"{file}, line 3, is not a valid token: {said}")
    assert login(console_tokens=file).holder(token) is not None


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\tb", "x" * 201])
def test_a_name_that_no_line_can_have_is_refused(name: str) -> None:
    with pytest.raises(WrongUsage, match="USER is not a name"):
        make(name, Role.READ)


@pytest.mark.parametrize("name", ["Wałęsa", "山田", "José", "ÀÁ", "ada"])
def test_a_name_of_any_script_comes_through_a_proxy(name: str) -> None:
    found = login(**PROXIED)
    assert found.viewer({"x-forwarded-user": name.encode().decode("latin-1")}, {}, "10.1.2.3") == Viewer(
        name, Role.READ
    )


def test_a_name_that_is_really_latin_1_comes_through_a_proxy() -> None:
    assert login(**PROXIED).viewer({"x-forwarded-user": "Jos\xe9"}, {}, "10.1.2.3") == Viewer("José", Role.READ)


@pytest.mark.parametrize(
    ("peer", "name", "viewer"),
    [
        ("10.1.2.3", "ada", Viewer("ada", Role.READ)),
        ("10.2.2.3", "ada", None),
        ("10.1.2.3", " ", None),
        ("10.1.2.3", "a\tb", None),
        (None, "ada", None),
        ("a name", "ada", None),
    ],
)
def test_only_a_named_proxy_says_who_it_is(peer: str | None, name: str, viewer: Viewer | None) -> None:
    assert login(console_host="0.0.0.0", **PROXIED).viewer({"x-forwarded-user": name}, {}, peer) == viewer


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        ({}, Role.READ),
        ({"ada": "publish"}, Role.PUBLISH),
        ({"*": "request"}, Role.REQUEST),
        ({"*": "operate", "ada": "read"}, Role.READ),
        ({"bob": "operate"}, Role.READ),
    ],
)
def test_a_proxy_s_user_has_the_role_of_the_settings(roles: dict[str, str], role: Role) -> None:
    found = login(**PROXIED, console_roles=roles)
    assert found.viewer({"x-forwarded-user": "ada"}, {}, "10.1.2.3") == Viewer("ada", role)


def test_beside_a_proxy_a_token_works_too(file: Path) -> None:
    found = login(console_tokens=file, **PROXIED)
    assert found.kind == "proxy"
    token = created(file, "ci", Role.REQUEST)
    by_token = Viewer("ci", Role.REQUEST, by_header=True)
    for peer in ("8.8.8.8", "10.1.2.3"):
        assert found.viewer({"authorization": f"bearer {token}", "x-forwarded-user": "ada"}, {}, peer) == by_token
    # What a proxy passes on for itself is none of ours.
    passed_on = {"authorization": "Bearer of-the-proxy", "x-forwarded-user": "ada"}
    assert found.viewer(passed_on, {}, "10.1.2.3") == Viewer("ada", Role.READ)
    assert found.viewer(passed_on, {}, "8.8.8.8") is None
