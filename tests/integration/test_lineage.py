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
from retrofill.domain.attempt import AttemptMode
from retrofill.driver.launch import Launch, LaunchedRun
from retrofill.driver.lineage import lineage_of, run_uuid


def day(number: int) -> datetime:
    return datetime(2020, 1, number, tzinfo=UTC)


def launch(*run_ids: int) -> Launch:
    """The launch of one attempt, each of whose runs begins for the second time."""
    runs = tuple(
        LaunchedRun(id=id, attempt=2, interval_start=day(n), interval_end=day(n + 1)) for n, id in enumerate(run_ids, 1)
    )
    return Launch(
        backfill_id="b", attempt_id=7, mode=AttemptMode.EACH, runs=runs, pipeline=daily("flights"), lease_seconds=15
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


def test_start_and_end_of_each_run_are_told_with_job_interval_and_parent(installation: Installation) -> None:
    topic = f"{installation.settings.topic_prefix}lineage"
    client = admin(installation.settings, "test")
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    lineage = lineage_of(installation.settings.model_copy(update={"openlineage_topic": topic}))
    error = ErrorInfo(type="ValueError", message="no rows", traceback="line 1")
    attempt = launch(1, 2)
    for run, failed in zip(attempt.runs, (None, error), strict=True):
        lineage.started(attempt, run)
        lineage.ended(attempt, run, failed, succeeded=failed is None)
    events = read(installation, topic, 4)
    by_run = {id: [e["eventType"] for e in events if e["run"]["runId"] == run_uuid(id, 2)] for id in (1, 2)}
    assert by_run == {1: ["START", "COMPLETE"], 2: ["START", "FAIL"]}
    assert {(e["job"]["namespace"], e["job"]["name"]) for e in events} == {("retrofill", "flights")}
    facets, other = (events[n]["run"]["facets"] for n in (0, 2))
    assert facets["nominalTime"]["nominalStartTime"] == "2020-01-01T00:00:00+00:00"
    assert facets["nominalTime"]["nominalEndTime"] == "2020-01-02T00:00:00+00:00"
    assert other["nominalTime"]["nominalStartTime"] == "2020-01-02T00:00:00+00:00"
    assert facets["parent"]["job"]["name"] == "flights.backfill"
    assert facets["parent"] == other["parent"]
    (failure,) = [e for e in events if e["eventType"] == "FAIL"]
    assert failure["run"]["facets"]["errorMessage"]["message"] == "ValueError: no rows"


def test_a_broker_that_is_away_fails_no_run(installation: Installation) -> None:
    update = {"openlineage_topic": "x", "kafka_bootstrap_servers": "127.0.0.1:1"}
    lineage = lineage_of(installation.settings.model_copy(update=update))
    attempt = launch(1)
    lineage.started(attempt, attempt.runs[0])
    lineage.ended(attempt, attempt.runs[0], None, succeeded=True)
