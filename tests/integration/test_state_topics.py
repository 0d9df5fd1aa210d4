"""Replaying the compacted state topics from the beginning yields the current state of backfills and
intervals.
"""

from __future__ import annotations

from typing import Any

from tests.support.definitions import daily
from tests.support.installation import Installation, until

from retrofill_core.contract.backfills import BackfillCancelRequested, BackfillPauseRequested
from retrofill_core.contract.topics import Topic


def replayed(made: Installation, topic: Topic) -> dict[str, dict[str, Any]]:
    """The last record of each key."""
    return {event.key: event.body for event in made.events(topic)}


def test_states_are_what_the_rows_say(installation: Installation) -> None:
    installation.start("backfill-planner", wait=False)
    failing = {"INSTANT_FAIL": "2020-01-02"}
    installation.start("instant-starter", failing)
    installation.apply(daily(max_active_runs=2))
    first = installation.request("p", "2020-01-01", "2020-01-04")
    assert installation.wait_state(first, "failed", "succeeded") == "failed"
    second = installation.request("p", "2020-01-02", "2020-01-02", reprocess_behavior="failed")
    installation.wait_state(second, "failed")
    for replica in installation.replicas[1:]:
        replica.stop()
    third = installation.request("p", "2021-01-01", "2021-01-02")
    installation.wait_state(third, "running")
    installation.publish(Topic.BACKFILL_REQUESTS, third, BackfillPauseRequested())
    installation.wait_state(third, "paused")
    until(lambda: replayed(installation, Topic.BACKFILL_STATES).get(third, {}).get("state") == "paused", "it is told")

    states = replayed(installation, Topic.BACKFILL_STATES)
    rows = {row["id"]: row for row in installation.query("SELECT * FROM backfill")}
    assert {key: body["state"] for key, body in states.items()} == {id: row["state"] for id, row in rows.items()}
    assert states[first]["runs_by_state"] == {"succeeded": 3, "failed": 1}
    assert (states[third]["range_start"], states[third]["runs"]) == ("2021-01-01T00:00:00Z", 2)

    intervals = replayed(installation, Topic.INTERVAL_STATES)
    assert {key: body["state"] for key, body in intervals.items()} == {
        "p/2020-01-01T00:00:00+00:00": "succeeded",
        "p/2020-01-02T00:00:00+00:00": "failed",
        "p/2020-01-03T00:00:00+00:00": "succeeded",
        "p/2020-01-04T00:00:00+00:00": "succeeded",
    }
    assert intervals["p/2020-01-02T00:00:00+00:00"]["backfill_id"] == second
    history = [e.body["state"] for e in installation.events(Topic.INTERVAL_STATES) if "01-02T" in e.key]
    assert history == ["running", "failed"] * 2

    installation.start("instant-starter")
    installation.publish(Topic.BACKFILL_REQUESTS, third, BackfillCancelRequested())
    installation.wait_state(third, "cancelled")
    until(lambda: replayed(installation, Topic.BACKFILL_STATES)[third]["state"] == "cancelled", "it is told")
    assert replayed(installation, Topic.BACKFILL_STATES)[third]["runs_by_state"] == {"cancelled": 2}
    assert not [key for key in replayed(installation, Topic.INTERVAL_STATES) if "2021" in key]
