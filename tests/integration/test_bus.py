"""Exactly-once between Kafka and Postgres: processes frozen and thawed, lost offsets, and recreated topics."""

from __future__ import annotations

import pytest
from confluent_kafka.cimpl import NewTopic
from tests.support.definitions import daily, key_on
from tests.support.installation import Installation, until

from retrofill_core.bus.clients import admin
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import Topic


def test_a_stopped_planner_that_wakes_up_commits_nothing(installation: Installation) -> None:
    stopped = installation.start("backfill-planner")
    installation.apply(daily())
    first = installation.request("p", "2020-01-01", "2020-01-02")
    installation.outcome(first)
    epochs = installation.value("SELECT sum(epoch) FROM backfill_planner_shard")
    stopped.freeze()
    successor = installation.start("backfill-planner")
    ids = [installation.request("p", f"{year}-01-01", f"{year}-01-02") for year in range(2001, 2009)]
    for id in ids:
        assert installation.outcome(id).body["type"] == "BackfillPlanned"
    assert installation.value("SELECT sum(epoch) FROM backfill_planner_shard") > epochs
    stopped.thaw()
    more = [installation.request("p", f"{year}-01-01", f"{year}-01-02") for year in range(2010, 2019)]
    for id in more:
        installation.outcome(id)
    answered = [e.key for e in installation.events(Topic.BACKFILL_EVENTS)]
    assert sorted(answered) == sorted([first, *ids, *more])
    assert stopped.process.poll() is None
    assert successor.process.poll() is None


@pytest.mark.long
def test_a_relay_that_was_fenced_inside_its_kafka_transaction_is_a_relay_again(installation: Installation) -> None:
    stopped = installation.start("backfill-planner", RETROFILL_CRASH_POINT="relay:kafka-begun:stop")
    definition = daily()
    ce_id = installation.publish(Topic.PIPELINES, definition.name, PipelineApplied(pipeline=definition))
    until(stopped.is_stopped, "the relay stands still inside its Kafka transaction")
    successor = installation.start("backfill-planner")
    installation.wait_answer(ce_id, Topic.PIPELINE_EVENTS)
    stopped.thaw()
    until(lambda: '"event": "relay_again"' in stopped.said(), "it finds out that it is fenced", stopped.said)
    successor.kill()
    id = installation.request("p", "2020-01-01", "2020-01-02")
    assert installation.outcome(id).body["type"] == "BackfillPlanned"
    assert len(installation.events(Topic.PIPELINE_EVENTS)) == 1


def test_an_offset_out_of_range_stops_the_shard_and_says_so(installation: Installation) -> None:
    planner = installation.start("backfill-planner")
    installation.apply(daily())
    planner.stop()
    broken, good = key_on(1), key_on(2)
    installation.query(
        "UPDATE backfill_planner_shard_offset SET next_offset = 1000000 "
        "WHERE topic = 'backfill-requests' AND partition = 1 RETURNING 1"
    )
    again = installation.start("backfill-planner")
    installation.request("p", "2020-01-01", "2020-01-02", id=broken)
    installation.request("p", "2021-01-01", "2021-01-02", id=good)
    assert installation.outcome(good).body["type"] == "BackfillPlanned"
    until(lambda: "shard_stopped" in again.said(), "the loud reason")
    offset = "SELECT next_offset FROM backfill_planner_shard_offset WHERE topic = 'backfill-requests' AND partition = 1"
    assert installation.value(offset) == 1000000
    assert installation.value("SELECT count(*) FROM backfill") == 1


def test_a_recreated_topic_starts_at_its_beginning(installation: Installation) -> None:
    planner = installation.start("backfill-planner")
    installation.apply(daily())
    for n in range(5):
        installation.outcome(installation.request("p", f"200{n}-01-01", f"200{n}-01-02", id=f"{key_on(1)}"))
    planner.stop()
    client = admin(installation.settings, "test-admin")
    name = f"{installation.settings.topic_prefix}{Topic.BACKFILL_REQUESTS}"
    client.delete_topics([name])[name].result(20)

    def created() -> bool:
        future = client.create_topics([NewTopic(name, installation.settings.partitions, 1)])[name]
        return future.exception(20) is None

    until(created, "the topic is made anew")
    installation.start("backfill-planner")
    id = installation.request("p", "2020-06-01", "2020-06-02")
    assert installation.outcome(id).body["type"] == "BackfillPlanned"


def test_another_number_of_partitions_is_refused(installation: Installation) -> None:
    installation.query("UPDATE installation SET partitions = 7 RETURNING 1")
    refused = installation.start("backfill-planner", wait=False)
    until(lambda: refused.process.poll() is not None, "the planner ends")
    assert refused.process.returncode == 1
    assert "7 were fixed at init" in refused.said()
