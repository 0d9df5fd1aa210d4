"""The console's requests and the planner's decisions on them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.console import Web
from tests.support.installation import Installation, until

from retrofill_core.contract.topics import Topic

HUNG = {"pipeline": "p", "from": "2021-01-01", "to": "2021-01-05"}


def asked(web: Web, path: str, body: Any = None, status: int = 200) -> Any:
    answer = web.post(path, body)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture
def hung(web: Web, place: Installation) -> Any:
    """A backfill of which two runs hang and the others are queued or done; it is cancelled at the end."""
    id = asked(web, "/api/v1/backfills", {**HUNG, "max_active_runs": 2, "reprocess_behavior": "completed"}, 201)["id"]
    until(lambda: place.runs_by_state(id).get("running") == 2, "two runs hang")
    yield id
    web.post(f"/api/v1/backfills/{id}/cancel")
    place.wait_state(id, "cancelled", "failed", "succeeded")


def test_a_preview_says_what_would_run_and_makes_nothing(web: Web, place: Installation) -> None:
    body = {"pipeline": "p", "from": "2022-01-01", "to": "2022-01-31", "max_active_runs": 2, "conf": {"a": 1}}
    before = place.value("SELECT count(*) FROM backfill")
    found = asked(web, "/api/v1/preview", body)
    assert (found["accepted"], found["runs"], found["skipped"]) == (True, 31, {})
    assert [(each["intervals"], each["outcome"]) for each in found["stretches"]] == [(31, "run")]
    assert "intervals" not in found
    assert (found["grid"]["states"], len(found["grid"]["starts"]), found["grid"]["ends"]) == ("w" * 31, 31, None)
    assert found["request"] == body
    assert found["command"].startswith(
        "retrofill backfill create p --from 2022-01-01 --to 2022-01-31 --max-active-runs 2"
    )
    assert place.value("SELECT count(*) FROM backfill") == before


def test_a_preview_names_who_is_in_the_way(web: Web, hung: str) -> None:
    found = asked(web, "/api/v1/preview", HUNG)
    assert (found["accepted"], found["reason"]) == (False, "overlap")
    assert [each["id"] for each in found["overlap"]] == [hung]
    refused = asked(web, "/api/v1/backfills", {**HUNG, "id": "second"}, 409)
    assert refused["answer"]["conflicting_backfill_id"] == hung
    assert refused["reason"] == "overlap"
    assert refused["error"].startswith(f"backfill {hung} of p is running")


def test_a_request_is_made_once_however_often_it_is_sent(web: Web, place: Installation) -> None:
    body = {"pipeline": "p", "from": "2022-03-01", "to": "2022-03-03", "id": "once"}
    for _ in range(2):
        assert asked(web, "/api/v1/backfills", body, 201)["answer"]["runs"] == 3
    assert place.value("SELECT count(*) FROM backfill WHERE id = 'once'") == 1
    assert place.value("SELECT triggered_by FROM backfill WHERE id = 'once'") is not None
    assert place.wait_state("once", "succeeded") == "succeeded"


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (
            "/api/v1/preview",
            {"pipeline": "q", "from": "2020-01-01", "to": "2020-01-02"},
            404,
            "there is no pipeline 'q'",
        ),
        ("/api/v1/preview", {"pipeline": "p"}, 400, "it has no 'from' and 'to'"),
        ("/api/v1/preview", {"pipeline": "p", "from": "yesterday", "to": "2020-01-02"}, 400, "neither a date like"),
        ("/api/v1/backfills", {**HUNG, "max_active": 2}, 400, "max_active"),
        ("/api/v1/backfills", {**HUNG, "batch_size": 0}, 400, "batch_size"),
        ("/api/v1/backfills/none/pause", {}, 409, "there is no backfill with this id"),
        ("/api/v1/backfills/none/retry", {}, 404, "there is no backfill"),
        ("/api/v1/backfills/none/change", {}, 400, "give what to change"),
        ("/api/v1/backfills/none/pause", {"now": True}, 400, "now"),
        ("/api/v1/runs/cancel", {"backfill_id": "none", "ids": [1]}, 404, "there is no backfill"),
        ("/api/v1/runs/cancel", {"backfill_id": "none"}, 400, "give either ids, or from and to"),
        ("/api/v1/dead-letters/replay", {"places": []}, 400, "places"),
    ],
)
def test_a_wrong_body_is_refused_in_one_line(web: Web, path: str, body: Any, status: int, said: str) -> None:
    assert said in asked(web, path, body, status)["error"]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"a": ' * 200])
def test_what_is_no_json_object_is_refused(web: Web, body: bytes) -> None:
    answer = web.client.post("/api/v1/preview", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, "the value" in answer.json()["error"]) == (400, True)


def test_another_method_is_refused_in_one_line(web: Web) -> None:
    answer = web.client.put("/api/v1/preview", json={})
    assert (answer.status_code, "/api/v1/preview does not take PUT" in answer.json()["error"]) == (405, True)


def test_a_body_that_is_too_large_is_refused(web: Web) -> None:
    body = b'{"pipeline": "' + b"x" * 1_000_000 + b'"}'
    answer = web.client.post("/api/v1/preview", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_a_backfill_is_paused_changed_resumed_and_cancelled(web: Web, place: Installation, hung: str) -> None:
    assert asked(web, f"/api/v1/backfills/{hung}/pause")["answer"]["type"] == "BackfillPaused"
    assert place.value("SELECT state FROM backfill WHERE id = %s", hung) == "paused"
    changed = asked(web, f"/api/v1/backfills/{hung}/change", {"max_active_runs": 3})["answer"]
    assert (changed["max_active_runs"], web.get(f"/api/v1/backfills/{hung}")["max_active_runs"]) == (3, 3)
    assert asked(web, f"/api/v1/backfills/{hung}/resume", {"budget": {"failed_runs": 9}})["id"] == hung
    assert web.get(f"/api/v1/backfills/{hung}")["budget"] == {"failed_runs": 9}
    assert asked(web, f"/api/v1/backfills/{hung}/cancel")["answer"]["type"] == "BackfillCancelling"
    assert asked(web, f"/api/v1/backfills/{hung}/pause", status=409)["answer"]["command"] == "BackfillPauseRequested"


def test_runs_of_a_range_are_cancelled_and_others_go_on(web: Web, place: Installation, hung: str) -> None:
    body = {"backfill_id": hung, "from": "2021-01-01", "to": "2021-01-02"}
    found = asked(web, "/api/v1/runs/cancel", body)
    # The first day may have succeeded already.
    assert found["backfill_id"] == hung
    assert found["runs"] in (1, 2)
    until(lambda: web.get(f"/api/v1/backfills/{hung}/grid")["states"][1] == "c", "the second day is cancelled")
    assert web.get(f"/api/v1/backfills/{hung}/grid")["states"][2] == "r"
    again = asked(web, "/api/v1/runs/cancel", {**body, "to": "2021-01-01"}, 409)
    assert "nothing to do" in again["error"]


def test_the_failed_runs_of_an_ended_backfill_are_retried_by_a_new_one(web: Web, place: Installation) -> None:
    ended = place.request("p", "2020-01-01", "2020-01-05", reprocess_behavior="completed")
    place.wait_state(ended, "failed")
    again = asked(web, f"/api/v1/backfills/{ended}/retry")
    assert again["id"] != ended
    assert (again["answer"]["type"], again["answer"]["runs"]) == ("BackfillPlanned", 2)
    place.wait_state(again["id"], "failed")
    failed = place.query("SELECT id FROM run WHERE backfill_id = %s AND state = 'failed'", again["id"])
    refused = asked(web, "/api/v1/runs/retry", {"backfill_id": again["id"], "ids": [row["id"] for row in failed]}, 409)
    assert again["id"] in refused["error"]


def test_a_dead_letter_that_is_a_request_is_replayed_and_another_is_not(web: Web, place: Installation) -> None:
    place.publish(Topic.BACKFILL_REQUESTS, "again-broken", b"{")
    place.publish(Topic.PIPELINES, "again-broken", b"{")
    letters: dict[str, str] = {}

    def there() -> bool:
        found = web.get("/api/v1/dead-letters")
        letters.update({each["origin_topic"]: each["place"] for each in found if each["key"] == "again-broken"})
        return len(letters) == 2

    until(there, "both are dead")
    places = [letters["backfill-requests"], letters["pipelines"], "0:999999", "nowhere"]
    found = asked(web, "/api/v1/dead-letters/replay", {"places": places})["results"]
    errors = {each["place"]: each["error"] for each in found}
    assert errors[places[0]] is None
    assert "not a topic of requests" in errors[places[1]]
    assert "there is no dead letter" in errors[places[2]]
    assert "invalid place" in errors[places[3]]
