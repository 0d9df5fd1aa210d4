"""Somebody adds partitions to topics while two planners work: nobody stops, and all that lands there is answered once."""

from __future__ import annotations

from confluent_kafka.admin import NewPartitions
from tests.support.installation import Installation, daily, key_on, until

from retrofill.admin.init import initialise
from retrofill.bus.clients import admin
from retrofill.contract.backfills import BackfillRequested
from retrofill.contract.pipelines import PipelineApplied
from retrofill.contract.topics import Topic


def test_partitions_that_are_added_to_topics_stop_nobody(installation: Installation) -> None:
    planners = [installation.start("backfill-planner") for _ in range(2)]
    installation.apply(daily())
    prefix = installation.settings.topic_prefix
    client = admin(installation.settings, "test-admin")
    # Not the same number for both: then the group gives no member all topics of the same partition.
    wanted = [NewPartitions(prefix + Topic.BACKFILL_REQUESTS, 8), NewPartitions(prefix + Topic.PIPELINES, 6)]
    for future in client.create_partitions(wanted).values():
        future.result(20)
    # Clients that know of the eight put keys on all of them; the first four are half of the time on a wrong one for us.
    ids = [key_on(p, 8) for p in range(8)]
    for n, id in enumerate(ids):
        installation.request("p", f"200{n}-01-01", f"200{n}-01-02", id=id)
    body = BackfillRequested.model_validate({"pipeline": "late", "from": "2020-01-01", "to": "2020-01-02"})
    late = daily("late")
    applied = installation.publish(Topic.PIPELINES, late.name, PipelineApplied(pipeline=late), partition=5)
    installation.publish(Topic.BACKFILL_REQUESTS, "on-an-added-one", body, partition=7)
    for id in (*ids, "on-an-added-one"):
        assert installation.outcome(id).body["type"] == "BackfillPlanned"
    installation.wait_answer(applied, Topic.PIPELINE_EVENTS)
    # One that starts now, and an init, take the topics as they are.
    initialise(installation.settings)
    planners[0].kill()
    installation.start("backfill-planner")
    last = installation.request("p", "2010-01-01", "2010-01-02", id=key_on(6, 8) + "-again")
    assert installation.outcome(last).body["type"] == "BackfillPlanned"
    assert planners[1].process.poll() is None
    until(lambda: installation.value("SELECT count(*) FROM backfill_planner_outbox") == 0, "all is published")
    answered = sorted(event.key for event in installation.events(Topic.BACKFILL_EVENTS))
    assert answered == sorted([*ids, "on-an-added-one", last])
    assert installation.value("SELECT count(*) FROM backfill_planner_shard") == installation.settings.partitions
