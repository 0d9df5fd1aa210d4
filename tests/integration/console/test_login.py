"""A console with tokens: people log in once, and their requests carry their names; each role opens its routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.console import Web, start_console
from tests.support.installation import Installation

from retrofill_console.api.table import ASKS, Ask
from retrofill_core.setting_types import Role
from retrofill_tools.client.tokens import add, make

# By role.
Tokens = dict[Role, str]


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return {}


@pytest.fixture(scope="module")
def guarded(place: Installation, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    file = tmp_path_factory.mktemp("console") / "tokens"
    web = start_console(place, RETROFILL_CONSOLE_TOKENS=str(file))
    for role in Role:
        secret, token = make(f"Ada, who may {role}", role)
        add(file, token)
        tokens[role] = secret
    yield web
    assert not [each for each in tokens.values() if each in web.replica.said()]


def test_nothing_is_told_without_the_token(guarded: Web) -> None:
    for path in ("/api/v1/backfills", "/api/v1/live", "/api/v1/runs/1/log"):
        refused = guarded.client.get(path)
        assert (refused.status_code, refused.json()["login"]) == (401, "token")
    assert guarded.post("/api/v1/backfills", {}).status_code == 401
    assert guarded.get("/api/v1/me")["logged_in"] is False
    assert guarded.post("/api/v1/login", {"token": "another"}).status_code == 401


def test_who_logs_in_asks_in_their_own_name_until_they_log_out(
    guarded: Web, place: Installation, tokens: Tokens
) -> None:
    entered = guarded.post("/api/v1/login", {"token": tokens[Role.PUBLISH]})
    assert (entered.status_code, entered.json()) == (200, {"user": "Ada, who may publish", "role": "publish"})
    kept = entered.headers["set-cookie"].lower()
    assert "httponly" in kept and "samesite=strict" in kept
    assert guarded.get("/api/v1/me")["user"] == "Ada, who may publish"
    with guarded.events() as events:
        assert next(events).name == "hello"
    body = {"pipeline": "p", "from": "2023-01-01", "to": "2023-01-02", "id": "of-ada"}
    assert guarded.post("/api/v1/backfills", body).status_code == 201
    assert place.value("SELECT triggered_by FROM backfill WHERE id = 'of-ada'") == "Ada, who may publish"
    assert guarded.post("/api/v1/logout").status_code == 200
    assert guarded.client.get("/api/v1/backfills").status_code == 401


def test_a_program_sends_the_token_itself(guarded: Web, tokens: Tokens) -> None:
    headers = {"authorization": f"Bearer {tokens[Role.READ]}", "sec-fetch-site": "cross-site"}
    preview = {"pipeline": "p", "from": "2023-02-01", "to": "2023-02-02"}
    assert guarded.client.post("/api/v1/preview", json=preview, headers=headers).json()["accepted"] is True


# Bodies without which a route is refused for another reason; the ids are of nothing.
BODIES = {
    "/api/v1/preview": {"pipeline": "p", "from": "2023-03-01", "to": "2023-03-02"},
    "/api/v1/backfills": {"pipeline": "none", "from": "2023-03-01", "to": "2023-03-02", "publish": "review"},
    "/api/v1/backfills/{id}/change": {"max_active_runs": 1},
    "/api/v1/runs/cancel": {"backfill_id": "none", "ids": [1]},
    "/api/v1/runs/retry": {"backfill_id": "none", "ids": [1]},
    "/api/v1/callbacks/replay": {"ids": [999_999]},
    "/api/v1/dead-letters/replay": {"places": ["0:999999"]},
}


@pytest.mark.parametrize("role", Role)
def test_a_route_is_open_to_its_role_and_those_above(guarded: Web, tokens: Tokens, role: Role) -> None:
    guarded.client.cookies.clear()
    headers = {"authorization": f"Bearer {tokens[role]}"}
    for ask in ASKS:
        assert ask.role is not None, ask.path
        path = ask.path.format(id="none")
        if role.allows(ask.role):
            continue
        answer = guarded.client.post(path, json=BODIES.get(ask.path, {}), headers=headers)
        line = f"{path} needs the role {ask.role}, and Ada, who may {role} has {role}: ask the console's operator"
        assert (answer.status_code, answer.json()) == (403, {"error": line})
    for path in ("/api/v1/backfills", "/api/v1/runs/1/log", "/api/v1/health"):
        assert guarded.client.get(path, headers=headers).status_code != 403


@pytest.mark.parametrize("ask", ASKS, ids=lambda each: each.path)
def test_the_role_of_a_route_is_enough(guarded: Web, tokens: Tokens, ask: Ask) -> None:
    assert ask.role is not None
    headers = {"authorization": f"Bearer {tokens[ask.role]}"}
    answer = guarded.client.post(ask.path.format(id="none"), json=BODIES.get(ask.path, {}), headers=headers)
    assert answer.status_code in (200, 404, 409), answer.text


def test_who_may_not_publish_requests_with_a_review(guarded: Web, tokens: Tokens) -> None:
    body = {"pipeline": "p", "from": "2023-04-01", "to": "2023-04-02"}
    headers = {"authorization": f"Bearer {tokens[Role.REQUEST]}"}
    refused = guarded.client.post("/api/v1/backfills", json=body, headers=headers)
    assert refused.status_code == 403
    assert refused.json()["error"].startswith("a backfill without a review (publish: review) needs the role publish")
    assert (
        guarded.client.post("/api/v1/backfills", json={**body, "publish": "review"}, headers=headers).status_code == 201
    )
