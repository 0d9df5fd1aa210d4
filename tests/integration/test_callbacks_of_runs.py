"""Failed runs and ended backfills call what their pipeline lists: real services, a real receiver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook
from tests.support.bodies import problems
from tests.support.callbacks import NEW, PAGERDUTY_KEY, create_topic, modules, read, receiver
from tests.support.definitions import alert, daily
from tests.support.installation import Installation, until
from tests.support.receiver import Answer, Receiver
from tests.support.servers import Servers
from tests.support.terminal import cli, point_at

from retrofill_core.contract.backfills import BackfillCancelRequested
from retrofill_core.contract.topics import Topic

__all__ = ["cli", "modules", "receiver"]
BAD_DAYS = [f"2020-01-{day:02}" for day in range(2, 12)]


@pytest.fixture(scope="module")
def stack(servers: Servers, modules: dict[str, str]) -> Iterator[Installation]:
    """All services, with drivers that fail on some days."""
    made = servers.installation()
    for service in ("backfill-planner", "deadline-watcher"):
        made.start(service, wait=False)
    made.start("callback-runner", modules, wait=False)
    made.start("instant-starter", RETROFILL_DRIVER_SLOTS="8", INSTANT_FAIL=",".join(BAD_DAYS))
    yield made
    made.close()


def hook(receiver: Receiver, path: str, **more: Any) -> dict[str, Any]:
    return {"kind": "webhook", "url": receiver.url(path), **more}


def ended(stack: Installation, name: str, first: str, last: str, **more: Any) -> str:
    """Run a backfill to its end and all of its callbacks to theirs; returns its id."""
    id = stack.request(name, first, last, **more)
    stack.wait_state(id, "succeeded", "failed", "cancelled")
    waiting = "SELECT count(*) FROM callback WHERE backfill_id = %s AND finished_at IS NULL"
    until(lambda: stack.value(waiting, id) == 0, "its callbacks end", lambda: str(rows(stack, id)))
    return id


def rows(stack: Installation, id: str) -> list[dict[str, Any]]:
    return stack.query("SELECT * FROM callback WHERE backfill_id = %s ORDER BY occasion, place, deadline_id", id)


def test_failures_are_called_once_together_or_each_and_so_is_the_end(
    stack: Installation, receiver: Receiver, tmp_path: Path
) -> None:
    out, topic = tmp_path / "out", create_topic(stack, "reporting.failed")
    stack.apply(
        daily(
            "both",
            on_run_failed=[
                {
                    "callback": hook(receiver, "/pd", body="pagerduty", routing_key="data"),
                    "kwargs": {
                        "text": "{digest.count} of {backfill.id}, first {run.logical_date:%Y-%m-%d}: {error.message}"
                    },
                    "digest_seconds": 3,
                },
                {"callback": hook(receiver, "/each"), "digest_seconds": 0},
            ],
            on_backfill_succeeded=[{"callback": "fail"}],
            on_backfill_failed=[
                {"callback": "save", "kwargs": {"path": str(out), "left": "{backfill.succeeded} of {backfill.runs}"}},
                hook_rule(receiver, "/slack", body="slack"),
                {"callback": {"kind": "topic", "topic": topic}},
            ],
        )
    )
    id = ended(stack, "both", "2020-01-01", "2020-01-14")
    made = rows(stack, id)
    assert {row["state"] for row in made} == {"succeeded"}
    runs = stack.query("SELECT id FROM run WHERE backfill_id = %s AND state = 'failed' ORDER BY id", id)
    assert len(runs) == len(BAD_DAYS)
    places = "SELECT place, array_agg(run_id ORDER BY run_id) AS runs FROM callback_run JOIN run ON run.id = run_id"
    of = stack.query(f"{places} WHERE backfill_id = %s GROUP BY place ORDER BY place", id)
    assert [each["runs"] for each in of] == [[row["id"] for row in runs]] * 2
    # Together, in one incident.
    incidents = [request.json for request in receiver.got("/pd")]
    together = [row for row in made if (row["occasion"], row["place"]) == ("run_failed", 0)]
    assert len(incidents) == len(together) < len(BAD_DAYS)
    assert sum(row["event"]["count"] for row in together) == len(BAD_DAYS)
    assert [problems("pagerduty", body) for body in incidents] == [[]] * len(incidents)
    assert len({body["dedup_key"] for body in incidents}) == 1
    assert incidents[0]["routing_key"] == PAGERDUTY_KEY
    count = together[0]["event"]["count"]
    # Several fail at once, so any of them may be the first.
    firsts = [{"text": f"{count} of {id}, first {day}: this day fails"} for day in BAD_DAYS]
    assert together[0]["kwargs"] in firsts
    # Each by itself, signed.
    alone = [Webhook(NEW).verify(request.body, request.headers) for request in receiver.got("/each")]
    assert sorted(each["data"]["failed"][0]["run_id"] for each in alone) == [row["id"] for row in runs]
    assert {(each["type"], each["data"]["count"]) for each in alone} == {("RunsFailed", 1)}
    error = {"type": "ValueError", "message": "this day fails"}
    assert all(each["data"]["failed"][0]["error"] == error for each in alone)
    # The end.
    kwargs, context = json.loads(out.read_text())
    assert kwargs == {"left": "4 of 14"}
    assert (context["type"], context["runs"]) == ("BackfillFailed", {"succeeded": 4, "failed": 10})
    assert context["command"] == f"retrofill backfill show {id}"
    assert context["callback_id"] in {row["deadline_id"] for row in made}
    (message,) = receiver.got("/slack")
    assert problems("slack", message.json) == []
    assert Webhook(NEW).verify(message.body, message.headers) == message.json
    ((_, value, headers),) = read(stack, topic, "read_committed")
    assert (value["type"], value["backfill_id"], headers["ce_type"]) == ("BackfillFailed", id, "BackfillFailed")
    stack.wait_published()
    told = [e for e in stack.events(Topic.CALLBACK_EVENTS) if e.body.get("backfill_id") == id]
    windows = [e.body for e in told if e.body["type"] == "RunsFailed"]
    assert sorted(e["callback_id"] for e in windows) == sorted(
        row["deadline_id"] for row in made if row["occasion"] == "run_failed"
    )
    assert sum(e.body["type"] == "CallbackSucceeded" for e in told) == len(made)


def hook_rule(receiver: Receiver, path: str, **more: Any) -> dict[str, Any]:
    return {"callback": hook(receiver, path, **more)}


def test_a_backfill_says_what_its_receivers_have_not_got(
    stack: Installation, receiver: Receiver, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Answer(503, headers={"Retry-After": "3600"}, body=b"down: token=hidden")
    stack.apply(
        daily(
            "undelivered",
            deadlines=[alert("at-once", "BACKFILL_REQUESTED_AT", 0.01, callback=hook(receiver, "/secret/path"))],
            on_backfill_succeeded=[
                hook_rule(receiver, "/secret/path"),
                {"callback": "fail", "kwargs": {"text": "nobody is on call"}},
                hook_rule(receiver, "/arrives"),
            ],
        )
    )
    receiver.answer("/secret/path", away)
    id = stack.request("undelivered", "2017-01-01", "2017-01-02")
    stack.wait_state(id, "succeeded")
    point_at(stack, monkeypatch)
    shown: dict[str, Any] = {}

    def arrived() -> bool:
        shown["all"] = cli("backfill", "show", id, "--json").document["undelivered"]
        return [(each["waiting"], each["failed"]) for each in shown["all"]] == [(2, 0), (0, 1)]

    until(arrived, "all are called", lambda: str(shown))
    hooked, called = shown["all"]
    assert hooked["receiver"] == f"http://127.0.0.1:{receiver.port}/***"
    assert hooked["down_since"] < hooked["next_call_at"]
    assert (called["down_since"], called["next_call_at"]) == (None, None)
    assert hooked["last_error"] == "the webhook answered 503 Service Unavailable: down: token=***"
    assert (called["kind"], called["receiver"]) == ("function", "fail")
    assert called["last_error"].endswith("RuntimeError: nobody is on call")
    said = cli("backfill", "show", id).out
    assert f"callbacks of webhook http://127.0.0.1:{receiver.port}/***: 2 waiting" in said
    assert "it has been down since" in said
    ids = stack.query("SELECT deadline_id FROM callback WHERE name LIKE '%/secret/path'")
    listed = cli("callbacks", "list", "--json").document
    assert sum(each["receiver_down_since"] is not None for each in listed) == len(ids) == 2
    commands = [("callbacks", "list"), ("pipelines", "show", "undelivered"), ("deadlines", "list")]
    commands += [("callbacks", "show", str(row["deadline_id"])) for row in ids]
    for command in commands:
        for as_json in ((), ("--json",)):
            out = cli(*command, *as_json).out
            assert "/secret/path" not in out
            assert not as_json or f"http://127.0.0.1:{receiver.port}/***" in out
    receiver.answer("/secret/path", Answer(204))


def test_a_success_is_called_and_a_cancel_is_not(stack: Installation, receiver: Receiver) -> None:
    stack.apply(
        daily(
            "ends",
            on_backfill_succeeded=[hook_rule(receiver, "/well", body="pagerduty", routing_key="data")],
            on_backfill_failed=[hook_rule(receiver, "/bad")],
        )
    )
    ended(stack, "ends", "2019-01-01", "2019-01-03")
    (request,) = receiver.got("/well")
    assert problems("pagerduty", request.json) == []
    assert request.json["event_action"] == "resolve"
    id = stack.request("ends", "2018-01-01", "2018-12-31", max_active_runs=1)
    stack.outcome(id)
    stack.publish(Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested())
    if stack.wait_state(id, "cancelled", "succeeded") == "cancelled":
        assert rows(stack, id) == []
    assert receiver.got("/bad") == []


def test_one_that_fails_says_what_it_is_about_and_can_be_replayed(
    stack: Installation, receiver: Receiver, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = receiver.answer("/down", Answer(400), Answer(400), Answer(200))
    stack.apply(daily("down", on_backfill_succeeded=[{"callback": {"kind": "webhook", "url": url, "body": "slack"}}]))
    id = ended(stack, "down", "2019-01-01", "2019-01-01")
    (row,) = rows(stack, id)
    assert (row["state"], row["attempts"]) == ("failed", 2)
    first, second = receiver.got("/down")
    assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])
    stack.wait_published()
    (event,) = (
        e.body
        for e in stack.events(Topic.CALLBACK_EVENTS)
        if e.key == str(row["deadline_id"]) and e.body["type"] == "CallbackFailed"
    )
    assert (event["occasion"], event["backfill_id"]) == ("backfill_succeeded", id)
    point_at(stack, monkeypatch)
    (shown,) = cli("callbacks", "list", "--state", "failed", "--pipeline", "down", "--json").document
    assert (shown["occasion"], shown["backfill_id"], shown["alert"]) == ("backfill_succeeded", id, None)
    text = cli("callbacks", "show", str(row["deadline_id"])).out
    assert "on_backfill_succeeded" in text
    assert id in text
    assert cli("callbacks", "replay", "--failed", "--pipeline", "down").status == 0
    until(lambda: rows(stack, id)[0]["state"] == "succeeded", "the replay")
