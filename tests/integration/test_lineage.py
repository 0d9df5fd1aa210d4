"""OpenLineage run events that a driver publishes on a Kafka topic."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.cimpl import NewTopic
from tests.support.definitions import daily
from tests.support.installation import Installation

from retrofill.bus.clients import admin, reader
from retrofill.contract.runs import ErrorInfo
from retrofill.driver.launch import Launch
from retrofill.driver.lineage import lineage_of, run_uuid


def launch(run_id: int) -> Launch:
    """The launch of one attempt."""
    return Launch(
        backfill_id="b",
        run_id=run_id,
        attempt=2,
        pipeline=daily("flights"),
        interval_start=datetime(2020, 1, 1, tzinfo=UTC),
        interval_end=datetime(2020, 1, 2, tzinfo=UTC),
    )


def read(installation: Installation, topic: str, count: int) -> list[dict[str, Any]]:
    """The first ``count`` events."""
    consumer = reader(installation.settings, "test")
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[dict[str, Any]] = []
    while len(found) < count:
        message = consumer.poll(20)
        assert message is not None
        if message.error() is None:
            found.append(json.loads(message.value() or b""))
    consumer.close()
    return found


def test_start_and_end_of_an_attempt_are_told_with_job_interval_and_parent(installation: Installation) -> None:
    topic = f"{installation.settings.topic_prefix}lineage"
    client = admin(installation.settings, "test")
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    lineage = lineage_of(installation.settings.model_copy(update={"openlineage_topic": topic}))
    error = ErrorInfo(type="ValueError", message="no rows", traceback="line 1")
    for one, failed in ((launch(1), None), (launch(2), error)):
        lineage.started(one)
        lineage.ended(one, failed, succeeded=failed is None)
    events = read(installation, topic, 4)
    by_run = {run: [e["eventType"] for e in events if e["run"]["runId"] == run_uuid(run, 2)] for run in (1, 2)}
    assert by_run == {1: ["START", "COMPLETE"], 2: ["START", "FAIL"]}
    assert {(e["job"]["namespace"], e["job"]["name"]) for e in events} == {("retrofill", "flights")}
    facets = events[0]["run"]["facets"]
    assert facets["nominalTime"]["nominalStartTime"] == "2020-01-01T00:00:00+00:00"
    assert facets["nominalTime"]["nominalEndTime"] == "2020-01-02T00:00:00+00:00"
    assert facets["parent"]["job"]["name"] == "flights.backfill"
    (failure,) = [e for e in events if e["eventType"] == "FAIL"]
    assert failure["run"]["facets"]["errorMessage"]["message"] == "ValueError: no rows"


def test_a_broker_that_is_away_fails_no_run(installation: Installation) -> None:
    update = {"openlineage_topic": "x", "kafka_bootstrap_servers": "127.0.0.1:1"}
    lineage = lineage_of(installation.settings.model_copy(update=update))
    lineage.started(launch(1))
    lineage.ended(launch(1), None, succeeded=True)
