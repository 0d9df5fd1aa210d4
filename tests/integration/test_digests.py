"""Digests on a real Kafka and Postgres: one event and one callback for all misses of a window."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.integration.deadline_events import fields, moment
from tests.support.definitions import alert, daily
from tests.support.installation import Installation, until


def test_a_digest_is_one_event_and_one_callback_for_all_that_were_missed_in_its_window(
    installation: Installation,
) -> None:
    installation.start("backfill-planner", wait=False)
    for _ in range(2):
        installation.start("deadline-watcher", wait=False)
    quiet = alert(
        "quiet",
        "RUN_QUEUED_AT",
        1,
        digest_seconds=2,
        callback="page",
        kwargs={"n": "{digest.count}", "of": "{pipeline}"},
    )
    installation.apply(daily(deadlines=[quiet]))
    id = installation.request("p", "2020-01-01", "2020-01-30")
    until(lambda: len(fields(installation, "DeadlinesMissed")) == 1, "the digest")
    (event,) = fields(installation, "DeadlinesMissed")
    ids = installation.query("SELECT id FROM deadline WHERE state = 'missed' ORDER BY id")
    assert sorted(each["deadline_id"] for each in event.body["missed"]) == [row["id"] for row in ids]
    assert (event.body["count"], event.body["parts"], len(ids)) == (30, 1, 30)
    assert event.key == str(event.body["digest_id"])
    assert moment(event.body["closed_at"]) - moment(event.body["opened_at"]) >= timedelta(seconds=2)
    (row,) = installation.query("SELECT * FROM callback")
    assert (row["deadline_id"], row["kwargs"]) == (event.body["digest_id"], {"n": "30", "of": "p"})
    assert row["event"]["type"] == "DeadlinesMissed"
    installation.start("instant-starter", RETROFILL_DRIVER_SLOTS="8")
    assert installation.wait_state(id, "succeeded", "failed") == "succeeded"
    until(lambda: len(fields(installation, "DeadlineRecovered")) == 30, "all recover")
    # After the digest and in its order, because it has the same key.
    assert {e.key for e in fields(installation, "DeadlineRecovered")} == {event.key}
    assert not fields(installation)


# A reference that no release writes, in one deadline of each shard.
FIRST_OF_EACH_SHARD = "SELECT min(id) FROM deadline WHERE alert = %s GROUP BY shard"
SPOIL = f"UPDATE deadline SET reference = 'NONSENSE' WHERE id IN ({FIRST_OF_EACH_SHARD}) RETURNING id"
REPAIR = "UPDATE deadline SET reference = 'RUN_QUEUED_AT' WHERE reference = 'NONSENSE' RETURNING id"
IN_ZONE = "UPDATE backfill SET definition = jsonb_set(definition, '{timezone}', '\"%s\"') RETURNING id"
# What joined a digest before this release read it.
JOIN = """
WITH mine AS (UPDATE deadline SET state = 'missed', decided_at = clock_timestamp(), digest_id = id
              WHERE reference = 'NONSENSE' RETURNING *)
INSERT INTO deadline_digest (id, shard, pipeline, alert, target, opened_at, closes_at)
SELECT id, shard, pipeline, alert, id::text, clock_timestamp(), clock_timestamp() FROM mine RETURNING id
"""


def planned(installation: Installation, days: int, *alerts: dict[str, Any]) -> None:
    """Deadlines of a backfill that nobody watches yet."""
    planner = installation.start("backfill-planner")
    installation.apply(daily(deadlines=list(alerts)))
    installation.outcome(installation.request("p", "2020-01-01", f"2020-01-{days:02}"))
    planner.stop()


def in_digests(installation: Installation) -> list[int]:
    """The deadlines that digests list, each as often as it is listed."""
    return sorted(each["deadline_id"] for e in fields(installation, "DeadlinesMissed") for each in e.body["missed"])


@pytest.mark.long
def test_one_that_cannot_be_read_joins_no_digest_and_stops_no_other_of_its_shard(installation: Installation) -> None:
    planned(installation, 20, alert("quiet", "RUN_QUEUED_AT", 1, digest_seconds=1), alert("soon", "RUN_QUEUED_AT", 1))
    bad = {row["id"] for row in installation.query(SPOIL, "quiet")}
    alone = {row["id"] for row in installation.query(SPOIL, "soon")}
    everyone = sorted(row["id"] for row in installation.query("SELECT id FROM deadline WHERE alert = 'quiet'"))
    watcher = installation.start("deadline-watcher")
    until(lambda: in_digests(installation) == [id for id in everyone if id not in bad], "all others are told")
    until(lambda: len(fields(installation)) == 20 - len(alone), "and all others without a digest")
    armed = {row["id"] for row in installation.query("SELECT id FROM deadline WHERE state = 'armed'")}
    assert armed == bad | alone
    assert watcher.said().count("deadline_set_aside") == len(armed)
    watcher.stop()
    installation.query(REPAIR)
    # Only this process had set them aside.
    installation.start("deadline-watcher")
    until(lambda: in_digests(installation) == everyone, "those too, once")


def test_a_time_zone_that_this_host_does_not_know_holds_up_only_what_needs_it(installation: Installation) -> None:
    plain, calls = (alert(name, "RUN_QUEUED_AT", 1, digest_seconds=1) for name in ("plain", "calls"))
    planned(installation, 20, plain, {**calls, "callback": "page"})
    installation.query(IN_ZONE % "Nowhere/Else")
    watcher = installation.start("deadline-watcher")
    until(lambda: len(in_digests(installation)) == 20, "all without a callback are told")
    until(lambda: watcher.said().count("deadline_set_aside") == 20, "the others are named")
    armed = installation.query("SELECT alert FROM deadline WHERE state = 'armed'")
    assert [row["alert"] for row in armed] == ["calls"] * 20
    watcher.stop()
    installation.query(IN_ZONE % "UTC")
    installation.start("deadline-watcher")
    until(lambda: len(set(in_digests(installation))) == 40, "those too")


@pytest.mark.long
def test_a_digest_that_cannot_be_closed_stops_nothing_else_of_its_shard(installation: Installation) -> None:
    quiet = alert("quiet", "RUN_QUEUED_AT", 1, digest_seconds=1)
    planned(installation, 20, quiet, alert("soon", "RUN_QUEUED_AT", 1))
    bad = [row["id"] for row in installation.query(SPOIL, "quiet")]
    assert sorted(row["id"] for row in installation.query(JOIN)) == sorted(bad)
    watcher = installation.start("deadline-watcher")
    until(lambda: len(in_digests(installation)) == 20 - len(bad), "the other digests are told")
    until(lambda: len(fields(installation)) == 20, "and what has no digest")
    open_ = installation.query("SELECT id FROM deadline_digest WHERE closed_at IS NULL")
    assert sorted(row["id"] for row in open_) == sorted(bad)
    assert watcher.said().count("digest_set_aside") == len(bad)
    assert "check_failed" not in watcher.said()
    watcher.stop()
    installation.query(REPAIR)
    installation.start("deadline-watcher")
    until(lambda: len(in_digests(installation)) == 20, "those too")
    assert len(set(in_digests(installation))) == 20
