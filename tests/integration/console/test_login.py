"""A console with a token: people log in once, and their requests carry their names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.console import Web, start_console
from tests.support.installation import Installation

TOKEN = "a token of enough characters"


@pytest.fixture(scope="module")
def guarded(place: Installation) -> Iterator[Web]:
    web = start_console(place, RETROFILL_CONSOLE_TOKEN=TOKEN)
    yield web
    assert TOKEN not in web.replica.said()


def test_nothing_is_told_without_the_token(guarded: Web) -> None:
    for path in ("/api/v1/backfills", "/api/v1/live", "/api/v1/runs/1/log"):
        refused = guarded.client.get(path)
        assert (refused.status_code, refused.json()["login"]) == (401, "token")
    assert guarded.post("/api/v1/backfills", {}).status_code == 401
    assert guarded.get("/api/v1/me")["logged_in"] is False
    assert guarded.post("/api/v1/login", {"token": "another"}).status_code == 401


def test_who_logs_in_asks_in_their_own_name_until_they_log_out(guarded: Web, place: Installation) -> None:
    entered = guarded.post("/api/v1/login", {"token": TOKEN, "name": "Ada Lovelace"})
    assert (entered.status_code, TOKEN in str(entered.headers)) == (200, False)
    kept = entered.headers["set-cookie"].lower()
    assert "httponly" in kept and "samesite=strict" in kept
    assert guarded.get("/api/v1/me")["user"] == "Ada Lovelace"
    with guarded.events() as events:
        assert next(events).name == "hello"
    body = {"pipeline": "p", "from": "2023-01-01", "to": "2023-01-02", "id": "of-ada"}
    assert guarded.post("/api/v1/backfills", body).status_code == 201
    assert place.value("SELECT triggered_by FROM backfill WHERE id = 'of-ada'") == "Ada Lovelace"
    assert guarded.post("/api/v1/logout").status_code == 200
    assert guarded.client.get("/api/v1/backfills").status_code == 401


def test_a_program_sends_the_token_itself(guarded: Web) -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "sec-fetch-site": "cross-site"}
    preview = {"pipeline": "p", "from": "2023-02-01", "to": "2023-02-02"}
    assert guarded.client.post("/api/v1/preview", json=preview, headers=headers).json()["accepted"] is True
