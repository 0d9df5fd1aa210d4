"""The API answers what the commands print with ``--json``, and the pages are served safely."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.support.console import Web, start_console
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.terminal import Cli

from retrofill_core.contract.topics import SERVICES, Topic


@pytest.fixture(scope="module")
def ended(place: Installation) -> str:
    """A backfill with two failed runs and one that was skipped."""
    id = place.request("p", "2020-01-01", "2020-01-10", id="ended", triggered_by="ada")
    assert place.wait_state(id, "failed") == "failed"
    place.wait_published()
    return id


@pytest.fixture
def failed_run(place: Installation, ended: str) -> int:
    return int(place.value("SELECT min(id) FROM run WHERE backfill_id = %s AND state = 'failed'", ended))


@pytest.mark.usefixtures("here", "ended")
@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/api/v1/backfills", "backfill list"),
        (
            "/api/v1/backfills?pipeline=p&state=failed&state=running&limit=3",
            "backfill list --pipeline p --state failed",
        ),
        ("/api/v1/backfills?state=paused", "backfill list --state paused"),
        ("/api/v1/backfills/ended", "backfill show ended"),
        ("/api/v1/backfills/ended?failures=1", "backfill show ended --failures 1"),
        ("/api/v1/runs?backfill=ended&state=failed", "runs list ended --state failed"),
        ("/api/v1/pipelines", "pipelines list"),
        ("/api/v1/pipelines/p", "pipelines show p"),
        ("/api/v1/deadlines?pipeline=p", "deadlines list --pipeline p"),
        ("/api/v1/callbacks", "callbacks list"),
    ],
)
def test_a_page_s_document_is_the_command_s(web: Web, cli: Cli, path: str, command: str) -> None:
    assert web.get(path) == cli(*command.split(), "--json").document


@pytest.mark.usefixtures("here")
def test_a_run_s_document_is_the_command_s(web: Web, cli: Cli, failed_run: int) -> None:
    found = web.get(f"/api/v1/runs/{failed_run}")
    assert found == cli("runs", "show", str(failed_run), "--json").document
    assert [(task["name"], task["after"]) for task in found["graph"]] == [("extract", []), ("load", ["extract"])]
    assert (found["state"], len(found["attempts"])) == ("failed", 1)


@pytest.mark.usefixtures("here")
def test_dead_letters_are_the_command_s_and_say_which_the_console_replays(
    web: Web, cli: Cli, place: Installation
) -> None:
    place.publish(Topic.BACKFILL_REQUESTS, "broken", b"{")
    place.publish(Topic.PIPELINES, "broken", b"{")
    until(lambda: [e.key for e in place.events(Topic.DEAD_LETTERS)].count("broken") == 2, "both are dead letters")
    found = web.get("/api/v1/dead-letters")
    replays = {each["origin_topic"]: each.pop("replay") for each in found}
    assert found == cli("dead-letters", "list", "--json").document
    assert replays["backfill-requests"] is None
    assert "retrofill dead-letters replay" in replays["pipelines"]


def test_the_list_has_progress(web: Web, ended: str) -> None:
    (found,) = [each for each in web.get("/api/v1/backfills") if each["id"] == ended]
    assert found["by_state"] == {"succeeded": 8, "failed": 2}
    assert (found["ended_runs"], found["estimate"], found["triggered_by"]) == (10, None, "ada")


def test_the_grid_is_the_intervals_in_order(web: Web, place: Installation, ended: str) -> None:
    found = web.get(f"/api/v1/backfills/{ended}/grid")
    rows = place.query("SELECT * FROM run WHERE backfill_id = %s ORDER BY interval_start", ended)
    assert found["states"] == "ssffssssss"
    assert found["starts"] == [row["interval_start"].timestamp() for row in rows]
    assert (found["ends"], found["end"]) == (None, rows[-1]["interval_end"].timestamp())
    assert found["runs"] == [row["id"] for row in rows]
    assert found["attempts"] == [1] * 10
    assert found["batches"] == [row["attempt_id"] for row in rows]
    assert (found["schedule"], found["timezone"], found["purged"]) == ("@daily", "UTC", False)
    again = place.request("p", "2020-01-02", "2020-01-04", reprocess_behavior="failed")
    place.wait_state(again, "failed")
    of_skipped = web.get(f"/api/v1/backfills/{again}/grid")
    assert (of_skipped["states"], of_skipped["runs"][0], of_skipped["letters"]["-"]) == ("-ff", 0, "already exists")


def test_a_grid_with_gaps_says_where_its_intervals_end(web: Web, place: Installation) -> None:
    place.request("p", "2019-01-01", "2019-01-01", id="gaps", **{"from": None, "to": None}, intervals=GAPS)
    place.wait_state("gaps", "succeeded")
    found = web.get("/api/v1/backfills/gaps/grid")
    assert [end - start for start, end in zip(found["starts"], found["ends"], strict=True)] == [86_400, 86_400]


GAPS = ["2019-01-01", "2019-01-05"]


@pytest.mark.parametrize(
    ("query", "there"),
    [
        ({"text": "NDE"}, True),
        ({"text": "%"}, False),
        ({"text": "p"}, True),
        ({"requester": "AD"}, True),
        ({"requester": "bob"}, False),
        ({"day": "2020-01-10"}, True),
        ({"day": "2020-01-11"}, False),
        ({"since": "2020-01-01"}, True),
        ({"since": "2999-01-01T00:00:00+02:00"}, False),
        ({"until": "2020-01-01"}, False),
        ({"until": "2999-01-01", "requester": "ada", "state": "failed", "text": ""}, True),
    ],
)
def test_backfills_are_searched(web: Web, ended: str, query: dict[str, str], there: bool) -> None:
    assert (ended in [each["id"] for each in web.get("/api/v1/backfills", **query)]) is there


def test_failures_are_grouped_by_their_error_apart_from_numbers(web: Web, place: Installation, ended: str) -> None:
    (found,) = web.get(f"/api/v1/backfills/{ended}")["failures"]
    assert (found["type"], found["message"], found["task"], found["runs"]) == (
        "ValueError",
        "this day fails",
        "extract",
        2,
    )
    dates = [f"2020-01-{day:02}T00:00:00+00:00" for day in (3, 4)]
    assert [each["interval_start"] for each in found["named"]] == dates
    assert found["range_end"] == "2020-01-05T00:00:00+00:00"
    assert found["example"]["id"] == found["named"][0]["id"]
    # With what users' code says.
    change = """
        UPDATE task_run SET error = jsonb_build_object('type', 'E', 'message', %s || run_id || E': no file\nat 0xff')
        WHERE run_id = %s AND task = 'extract' RETURNING run_id
    """
    first, second = (each["id"] for each in found["named"])
    place.query(change, "shop 4 of ", first)
    place.query(change, "shop 17 of ", second)
    # Other addresses: answers are shared for a second.
    (found,) = web.get(f"/api/v1/backfills/{ended}?failures=1")["failures"]
    assert (found["message"], found["runs"]) == (f"shop 4 of {first}: no file", 2)
    place.query(change, "another shop of ", second)
    of = web.get(f"/api/v1/backfills/{ended}?failures=2")["failures"]
    assert [(each["runs"], each["named"][0]["id"]) for each in of] == [(1, first), (1, second)]


def test_coverage_is_the_present_state_of_each_interval(web: Web, place: Installation, ended: str) -> None:
    found = web.get("/api/v1/pipelines/p/coverage")
    day = found["starts"].index(int(datetime(2020, 1, 1, tzinfo=UTC).timestamp()))
    assert (found["starts"][0], found["cut"]) == (int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()), False)
    assert found["states"][day - 1 : day + 11] == ".ssffssssss."
    assert found["letters"]["."] == "never run"
    runs = place.query("SELECT id FROM run WHERE backfill_id = %s ORDER BY interval_start", ended)
    assert [found["runs"][day - 1], *found["runs"][day : day + 2]] == [0, *(run["id"] for run in runs[:2])]
    assert (found["backfills"][found["backfill"][day]], found["backfill"][day - 1]) == (ended, -1)
    assert found["codes"] == [] and found["finished"][day] > 0
    place.apply(weekly := daily("weekly", schedule="0 0 * * 1", timezone="Europe/Berlin"))
    until(lambda: len(web.get("/api/v1/pipelines")) == 2, "it is applied")
    assert set(web.get(f"/api/v1/pipelines/{weekly.name}/coverage")["states"]) == {"."}


def test_health_says_who_works_and_how_far_behind_it_is(web: Web, place: Installation, ended: str) -> None:
    place.wait_published()
    found = web.get("/api/v1/health")
    assert (found["postgres"], found["kafka"]) == (None, None)
    services = {each["name"]: each for each in found["services"]}
    assert list(services) == list(SERVICES)
    planner = services["backfill-planner"]
    assert (len(planner["replicas"]), planner["shards"], planner["owned"], planner["unpublished"]) == (1, 4, 4, 0)
    assert services["deadline-watcher"]["replicas"] == []
    until(lambda: web.get("/api/v1/health")["services"][0]["lag"] == 0, "the planner has read everything")
    assert [host["pool"] for host in found["hosts"]] == ["default"]
    assert found["pools"][0]["pipelines"] == len(web.get("/api/v1/pipelines"))


def test_a_lag_has_an_age(installation: Installation) -> None:
    planner = installation.start("backfill-planner")
    web = start_console(installation)
    until(lambda: web.get("/api/v1/health")["services"][0]["owned"] == 4, "the planner owns its shards")
    planner.kill()
    installation.publish(Topic.BACKFILL_REQUESTS, "waits", b"{}")
    until(lambda: web.get("/api/v1/health")["services"][0]["lag"] == 1, "the message waits")
    assert 0 <= web.get("/api/v1/health")["services"][0]["oldest_message_seconds"] < 60


def test_a_review_is_compared_while_it_waits(web: Web, ended: str) -> None:
    with web.events(f"/api/v1/backfills/{ended}/diff") as events:
        (told,) = list(events)
    assert (told.name, "did not ask for a review" in told.document["error"]) == ("problem", True)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/v1/backfills/none", 404, "there is no backfill 'none'"),
        ("/api/v1/backfills/none/grid", 404, "there is no backfill"),
        ("/api/v1/runs/999999999", 404, "there is no run"),
        ("/api/v1/runs/x", 400, "id=x: use a number"),
        ("/api/v1/runs?backfill=none", 404, "there is no backfill"),
        ("/api/v1/pipelines/flihgts", 404, "there is no pipeline 'flihgts'"),
        ("/api/v1/backfills?limit=0", 400, "limit=0: use a number from 1 to 10,000"),
        ("/api/v1/backfills?state=lost", 400, "state=lost: use one of running"),
        ("/api/v1/backfills?since=yesterday", 400, "since: 'yesterday' is neither a date"),
        ("/api/v1/backfills?day=2020-01-01T00:00:00Z", 400, "day=2020-01-01T00:00:00Z: use a date"),
        ("/api/v1/pipelines/q/coverage", 404, "there is no pipeline 'q'"),
        ("/api/v1/backfills/none/diff", 404, "there is no backfill"),
        ("/api/v1/nothing", 404, "the API has no /api/v1/nothing"),
        ("/api/backfills", 404, "the API has no /api/backfills: /api/v1/openapi.json lists"),
        ("/api/v1/backfills?pipeline=%00", 400, "the address has a NUL character"),
        ("/api/v1/pipelines/%00", 400, "the address has a NUL character"),
    ],
)
def test_an_error_is_one_line(web: Web, path: str, status: int, said: str) -> None:
    found = web.client.get(path)
    assert found.status_code == status
    assert said in found.json()["error"]


@pytest.mark.parametrize("path", ["/", "/backfills/ended", "/health"])
def test_a_page_is_the_one_file_and_loads_nothing_from_elsewhere(web: Web, path: str) -> None:
    found = web.client.get(path)
    assert (found.status_code, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'self'" in found.headers["content-security-policy"]


def test_a_file_is_sent_again_only_if_it_changed(web: Web) -> None:
    found = web.client.get("/static/icon.svg")
    assert (found.status_code, found.headers["content-type"]) == (200, "image/svg+xml")
    again = web.client.get("/static/icon.svg", headers={"if-none-match": found.headers["etag"]})
    assert (again.status_code, again.headers["cache-control"]) == (304, "no-cache")
    assert web.client.get("/static/../app.py").status_code in (200, 404)
    assert web.client.get("/static/%2e%2e/app.py").status_code == 404


def test_a_large_answer_is_compressed_and_a_stream_is_not(web: Web, ended: str) -> None:
    assert web.client.get(f"/api/v1/backfills/{ended}").headers["content-encoding"] == "gzip"
    with web.client.stream("GET", "/api/v1/live") as stream:
        assert "content-encoding" not in stream.headers
