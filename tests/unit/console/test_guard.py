"""Requests of other sites' pages are refused, and every answer has the headers that keep pages safe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from retrofill_console.login import COOKIE, HEADERS, Guard, Login
from retrofill_core.setting_types import Role
from retrofill_core.settings import Settings
from retrofill_tools.client.tokens import add, make

JSON = {"content-type": "application/json"}


async def _answer(request: Request) -> PlainTextResponse:
    viewer = getattr(request.state, "viewer", None)
    return PlainTextResponse("nobody" if viewer is None else str(viewer.name))


APP = Starlette(routes=[Route("/{path:path}", _answer, methods=["GET", "POST"])])


def asked(method: str, path: str, headers: dict[str, str], **more: Any) -> Any:
    settings = Settings.model_validate({"home": "/nowhere", **more})
    with TestClient(Guard(APP, Login(settings)), base_url="http://localhost:18470") as client:
        return client.request(method, path, headers=headers)


@pytest.mark.parametrize("host", ["localhost", "localhost:18470", "127.0.0.1:1", "127.0.0.2:18470", "[::1]:18470"])
def test_the_own_names_are_let_in(host: str) -> None:
    assert asked("GET", "/api/v1/backfills", {"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.evil.example", "localhost.evil.example", "127.0.0.1.evil.example:18470", "[", ""]
)
@pytest.mark.parametrize("path", ["/", "/api/v1/backfills"])
def test_a_name_that_was_made_to_lead_here_is_not(host: str, path: str) -> None:
    assert asked("GET", path, {"host": host}).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**JSON, "sec-fetch-site": "same-origin"}, 200),
        ({**JSON, "sec-fetch-site": "none"}, 200),
        ({**JSON, "origin": "http://localhost:18470"}, 200),
        ({"content-type": "application/json; charset=utf-8", "sec-fetch-site": "same-origin"}, 200),
        (JSON, 403),
        ({**JSON, "sec-fetch-site": "cross-site"}, 403),
        ({**JSON, "sec-fetch-site": "same-site"}, 403),
        ({**JSON, "sec-fetch-site": "cross-site", "origin": "http://localhost:18470"}, 403),
        ({**JSON, "origin": "http://localhost:18471"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({"content-type": "text/plain", "sec-fetch-site": "same-origin"}, 415),
        ({"sec-fetch-site": "same-origin"}, 415),
    ],
)
def test_only_our_own_pages_change_something(headers: dict[str, str], status: int) -> None:
    assert asked("POST", "/api/v1/backfills", headers).status_code == status


def test_what_another_site_loads_is_refused() -> None:
    assert asked("GET", "/api/v1/backfills", {"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_login_is_asked_for_by_the_api_and_not_by_the_pages(tmp_path: Path) -> None:
    secret, token = make("ada", Role.READ)
    add(tmp_path / "tokens", token)
    known = {"console_tokens": tmp_path / "tokens"}
    refused = asked("GET", "/api/v1/backfills", {}, **known)
    assert (refused.status_code, refused.json()) == (401, {"error": "log in first", "login": "token"})
    assert asked("GET", "/backfills", {}, **known).status_code == 200
    assert asked("GET", "/api/v1/me", {}, **known).text == "nobody"
    by_token = {"authorization": f"Bearer {secret}", "host": "any.example"}
    assert asked("GET", "/api/v1/backfills", by_token, **known).text == "ada"
    # A program that sends the token is no page of another site.
    assert asked("POST", "/api/v1/backfills", {**by_token, **JSON}, **known).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer retrofill_none"}, {"cookie": f"{COOKIE}=retrofill_none"}]
)
def test_an_unknown_token_is_refused_in_one_line(tmp_path: Path, headers: dict[str, str]) -> None:
    refused = asked("GET", "/api/v1/backfills", headers, console_tokens=tmp_path / "none")
    assert refused.status_code == 401
    assert refused.json()["error"].startswith("this token is unknown or was revoked")


def test_tokens_that_cannot_be_read_any_more_let_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    settings = Settings.model_validate({"home": "/nowhere", "console_tokens": file})
    login = Login(settings)
    file.mkdir()
    with TestClient(Guard(APP, login), base_url="http://localhost:18470") as client:
        refused = client.get("/api/v1/backfills", headers={"authorization": "Bearer retrofill_none"})
    assert (refused.status_code, "the file of tokens cannot be read" in refused.json()["error"]) == (503, True)


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/v1/me", "/api/backfills"])
def test_every_answer_has_the_headers(path: str) -> None:
    for headers in ({}, {"host": "evil.example"}):
        answered = asked("GET", path, headers)
        assert {name: answered.headers[name] for name in HEADERS} == HEADERS
        assert answered.headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")
