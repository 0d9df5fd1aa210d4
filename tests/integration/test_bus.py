"""Exactly-once between Kafka and Postgres: processes killed at every step, frozen and thawed, and
recreated topics.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic
from tests.support.definitions import daily, key_on
from tests.support.installation import Installation, until
from tests.support.replica import Replica
from tests.support.tiers import some

from retrofill_core.bus.clients import admin
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import PLANNER, Topic

# Around each commit of the consumer and between the relay's three steps.
CRASH_POINTS = [
    "batch:begun",
    "batch:before-commit",
    "batch:committed",
    "relay:fenced",
    "relay:numbered",
    "relay:before-kafka-commit",
    "relay:published",
]


def stands_still(replica: Replica) -> bool:
    """Whether the process has stopped itself."""
    stat = Path(f"/proc/{replica.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("point", some(CRASH_POINTS, "relay:published"))
def test_a_planner_killed_at_any_step_leaves_one_outcome(installation: Installation, point: str) -> None:
    dying = installation.start("backfill-planner", RETROFILL_CRASH_POINT=point, wait=False)
    definition = daily()
    installation.publish(Topic.PIPELINES, definition.name, PipelineApplied(pipeline=definition))
    id = installation.request("p", "2020-01-01", "2020-01-10")
    until(lambda: dying.process.poll() is not None, f"the planner dies at {point}")
    assert dying.process.returncode == -signal.SIGKILL
    # The whole backfill or nothing: never a backfill without its runs.
    for backfill in installation.query("SELECT id, runs FROM backfill"):
        assert installation.runs_by_state(backfill["id"]) == {"queued": backfill["runs"]}
    installation.start("backfill-planner")
    assert installation.outcome(id).body["type"] == "BackfillPlanned"
    installation.wait_published()
    answers = [e for e in installation.events(Topic.BACKFILL_EVENTS) if e.key == id]
    assert len(answers) == 1
    assert len(list(installation.events(Topic.PIPELINE_EVENTS))) == 1
    assert installation.runs_by_state(id) == {"queued": 10}


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
def test_many_replicas_publish_each_event_once(installation: Installation) -> None:
    replicas = [installation.start("backfill-planner") for _ in range(3)]
    installation.apply(daily())
    ids = []
    for n, replica in enumerate(replicas):
        ids += [installation.request("p", f"20{n}{m}-01-01", f"20{n}{m}-01-01") for m in range(10)]
        replica.kill()
        installation.start("backfill-planner")
    for id in ids:
        installation.outcome(id)
    answered = [e.key for e in installation.events(Topic.BACKFILL_EVENTS)]
    assert sorted(answered) == sorted(ids)
    events = installation.events(Topic.BACKFILL_EVENTS)
    assert len({e.headers["ce_id"] for e in events}) == len(events)


@pytest.mark.long
def test_a_relay_that_was_fenced_inside_its_kafka_transaction_is_a_relay_again(installation: Installation) -> None:
    stopped = installation.start("backfill-planner", RETROFILL_CRASH_POINT="relay:kafka-begun:stop")
    definition = daily()
    ce_id = installation.publish(Topic.PIPELINES, definition.name, PipelineApplied(pipeline=definition))
    until(lambda: stands_still(stopped), "the relay stands still inside its Kafka transaction")
    successor = installation.start("backfill-planner")
    installation.wait_answer(ce_id, Topic.PIPELINE_EVENTS)
    stopped.thaw()
    until(lambda: '"event": "relay_again"' in stopped.said(), "it finds out that it is fenced", stopped.said)
    successor.kill()
    id = installation.request("p", "2020-01-01", "2020-01-02")
    assert installation.outcome(id).body["type"] == "BackfillPlanned"
    assert len(installation.events(Topic.PIPELINE_EVENTS)) == 1


def test_a_misplaced_message_is_handled_by_its_owner(installation: Installation) -> None:
    installation.start("backfill-planner")
    installation.apply(daily())
    from retrofill_core.contract.backfills import BackfillRequested

    body = BackfillRequested.model_validate({"pipeline": "p", "from": "2020-01-01", "to": "2020-01-02"})
    ce_id = installation.publish(Topic.BACKFILL_REQUESTS, key_on(2), body, partition=1)
    assert installation.wait_answer(ce_id).body["type"] == "BackfillPlanned"
    assert installation.value("SELECT shard FROM backfill") == 2


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


def test_the_schema_is_what_the_migrations_make(installation: Installation) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from retrofill_core.store.engine import make_engine
    from retrofill_core.store.tables import metadata

    engine = make_engine(installation.settings.dsn_of("owner"), "test")
    with engine.connect() as conn:
        context = MigrationContext.configure(
            conn,
            opts={
                "include_schemas": True,
                "include_name": lambda name, kind, _: kind != "schema" or name == "retrofill",
                "compare_server_default": False,
            },
        )
        differences = [d for d in compare_metadata(context, metadata) if "alembic_version" not in repr(d)]
    engine.dispose()
    assert differences == []
    assert PLANNER.package == "backfill_planner"
