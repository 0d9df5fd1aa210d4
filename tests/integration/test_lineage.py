"""OpenLineage run events that a run-starter publishes of its drivers' reports, on a Kafka topic."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.cimpl import NewTopic
from tests.support.definitions import daily
from tests.support.installation import Installation

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import AttemptMode
from retrofill_core.bus.clients import admin, reader
from retrofill_core.contract.runs import AttemptEnded, ErrorInfo, PublishedOutput, Report, RunBegan, RunReported
from retrofill_core.domain.undo import undo_of
from run_starter.executors import LaunchRequest
from run_starter.host.lineage import event_of, lineage_of, run_uuid

TABLE, FOLDER = PublishedOutput(name="lake.db.t", version="8"), PublishedOutput(name="/data/day=1")
ERROR = ErrorInfo(type="ValueError", message="no rows", traceback="line 1")


def day(number: int) -> datetime:
    return datetime(2020, 1, number, tzinfo=UTC)


def launch(*run_ids: int, mode: AttemptMode = AttemptMode.EACH) -> LaunchRequest:
    """The launch of one attempt, each of whose runs begins for the second time."""
    runs = tuple(LaunchedRun(id, 2, day(n), day(n + 1)) for n, id in enumerate(run_ids, 1))
    return LaunchRequest("b", 7, mode, runs, daily("flights"), {}, lease_seconds=15.0)


def began(attempt: LaunchRequest, run_id: int) -> Report:
    return RunBegan(**attempt.about, run_id=run_id, attempt=2)


def ended(attempt: LaunchRequest, run_id: int, error: ErrorInfo | None = None) -> Report:
    state, published = ("succeeded", (TABLE, FOLDER)) if error is None else ("failed", ())
    return RunReported(**attempt.about, run_id=run_id, attempt=2, state=state, error=error, published=published)


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
    attempt, publication = launch(1, 2), launch(3, mode=AttemptMode.PUBLISH)
    # What an earlier attempt executed begins no second time.
    lineage.reported(publication, began(publication, 3))
    for run_id, error in ((1, None), (2, ERROR)):
        lineage.reported(attempt, began(attempt, run_id))
        lineage.reported(attempt, ended(attempt, run_id, error))
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
    (success,) = [e for e in events if e["eventType"] == "COMPLETE"]
    table, folder = success["outputs"]
    assert (table["namespace"], table["name"]) == ("retrofill", "lake.db.t")
    assert table["facets"]["version"]["datasetVersion"] == "8"
    assert (folder["namespace"], folder["name"], folder["facets"]) == ("file", "/data/day=1", {})
    (failure,) = [e for e in events if e["eventType"] == "FAIL"]
    assert failure["run"]["facets"]["errorMessage"]["message"] == "ValueError: no rows"


def test_an_undo_is_no_success_of_the_pipelines_job() -> None:
    undo = replace(launch(1), pipeline=undo_of(daily("flights")))
    for attempt, name, kind in ((launch(1), "flights", "RUN"), (undo, "flights.undo", "UNDO")):
        job = event_of("COMPLETE", "retrofill", attempt, attempt.runs[0], None).job
        assert (job.name, job.facets["jobType"].jobType) == (name, kind)


def test_a_range_that_failed_fails_each_of_its_runs(installation: Installation) -> None:
    topic = f"{installation.settings.topic_prefix}ranges"
    client = admin(installation.settings, "test")
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    lineage = lineage_of(installation.settings.model_copy(update={"openlineage_topic": topic}))
    attempt = launch(1, 2, mode=AttemptMode.RANGE)
    lineage.reported(attempt, AttemptEnded(**attempt.about, state="failed", error=ERROR))
    told = [(event["eventType"], event["run"]["runId"]) for event in read(installation, topic, 2)]
    assert told == [("FAIL", run_uuid(1, 2)), ("FAIL", run_uuid(2, 2))]


def test_a_broker_that_is_away_fails_no_run(installation: Installation) -> None:
    update = {"openlineage_topic": "x", "kafka_bootstrap_servers": "127.0.0.1:1"}
    lineage = lineage_of(installation.settings.model_copy(update=update))
    attempt = launch(1)
    lineage.reported(attempt, began(attempt, 1))
    lineage.reported(attempt, ended(attempt, 1))
