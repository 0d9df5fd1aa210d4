"""Requests of other sites' pages are refused, and every answer has the headers that keep pages safe."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from retrofill_console.login import HEADERS, Guard, Login
from retrofill_core.settings import Settings

TOKEN = "0123456789abcdef"
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


def test_a_login_is_asked_for_by_the_api_and_not_by_the_pages() -> None:
    refused = asked("GET", "/api/v1/backfills", {}, console_token=TOKEN)
    assert (refused.status_code, refused.json()["login"]) == (401, "token")
    assert asked("GET", "/backfills", {}, console_token=TOKEN).status_code == 200
    assert asked("GET", "/api/v1/me", {}, console_token=TOKEN).text == "nobody"
    by_token = {"authorization": f"Bearer {TOKEN}", "host": "any.example"}
    assert asked("GET", "/api/v1/backfills", by_token, console_token=TOKEN).text == "console"
    # A program that sends the token is no page of another site.
    assert asked("POST", "/api/v1/backfills", {**by_token, **JSON}, console_token=TOKEN).status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/v1/me", "/api/v1/backfills"])
def test_every_answer_has_the_headers(path: str) -> None:
    for headers in ({}, {"host": "evil.example"}):
        answered = asked("GET", path, headers)
        assert {name: answered.headers[name] for name in HEADERS} == HEADERS
        assert answered.headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")
