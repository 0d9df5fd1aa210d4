"""Partitions are added to topics while two planners work: no planner stops, and each message there
gets one reply.
"""

from __future__ import annotations

import pytest
from confluent_kafka.cimpl import NewPartitions
from tests.support.definitions import daily, key_on
from tests.support.installation import Installation

from retrofill_core.bus.clients import admin
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_tools.admin.init import initialize


@pytest.mark.long
def test_partitions_that_are_added_to_topics_stop_nobody(installation: Installation) -> None:
    planners = [installation.start("backfill-planner") for _ in range(2)]
    installation.apply(daily())
    prefix = installation.settings.topic_prefix
    client = admin(installation.settings, "test-admin")
    # Different counts for the two topics, so the group assigns no member all topics of some
    # partitions.
    wanted = [NewPartitions(prefix + Topic.BACKFILL_REQUESTS, 8), NewPartitions(prefix + Topic.PIPELINES, 6)]
    wanted.append(NewPartitions(PLANNER.cursor_topic(prefix), 5))
    for future in client.create_partitions(wanted).values():
        future.result(20)
    # Clients that see eight partitions use all of them. For the planners' four, half of the keys on
    # the first four are misplaced.
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
    # A new planner and a new init accept the topics as they are.
    initialize(installation.settings)
    planners[0].kill()
    installation.start("backfill-planner")
    last = installation.request("p", "2010-01-01", "2010-01-02", id=key_on(6, 8) + "-again")
    assert installation.outcome(last).body["type"] == "BackfillPlanned"
    assert planners[1].process.poll() is None
    installation.wait_published()
    answered = sorted(event.key for event in installation.events(Topic.BACKFILL_EVENTS))
    assert answered == sorted([*ids, "on-an-added-one", last])
    assert installation.value("SELECT count(*) FROM backfill_planner_shard") == installation.settings.partitions
