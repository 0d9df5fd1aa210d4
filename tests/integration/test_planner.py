"""The planner as real processes on a real Kafka and Postgres."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.support.definitions import alert, daily, key_on
from tests.support.events import Event
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.servers import Servers

from retrofill_core.contract.backfills import (
    BackfillRequested,
)
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import Topic, partition_of


@pytest.fixture(scope="module")
def planner(servers: Servers) -> Iterator[Installation]:
    """An installation with one planner, and pipelines of most tests' own."""
    made = servers.installation()
    made.start("backfill-planner", RETROFILL_MAX_PLAN_RUNS="2000")
    for name in ("p", "known", "followed", "removed", "traced"):
        made.apply(daily(name))
    yield made
    made.close()


def test_a_request_becomes_all_its_rows_and_one_event(planner: Installation) -> None:
    id = planner.request("p", "2020-01-01", "2022-12-31")
    answer = planner.outcome(id)
    assert answer.body["type"] == "BackfillPlanned"
    assert answer.body["runs"] == 1096
    assert planner.runs_by_state(id) == {"queued": 1096}
    assert planner.value("SELECT count(*) FROM backfill_interval WHERE backfill_id = %s", id) == 1096
    assert len([e for e in planner.events(Topic.BACKFILL_EVENTS) if e.key == id]) == 1


def test_apply_and_then_request_works_whatever_the_order_of_reading(planner: Installation) -> None:
    for n in range(5):
        definition = daily(f"fresh{n}")
        planner.publish(Topic.PIPELINES, definition.name, PipelineApplied(pipeline=definition))
        id = planner.request(definition.name, "2020-01-01", "2020-01-02")
        assert planner.outcome(id).body["type"] == "BackfillPlanned"


def test_a_message_made_by_hand_gets_an_id_and_an_answer(planner: Installation) -> None:
    body = {"type": "BackfillRequested", "pipeline": "p", "from": "2019-02-01", "to": "2019-02-02"}
    planner.publish(Topic.BACKFILL_REQUESTS, None, json.dumps(body).encode())
    mine = "2019-02-01T00:00:00Z"
    answer = planner.wait_event(Topic.BACKFILL_EVENTS, lambda e: e.body.get("range_start") == mine, "an answer")
    assert answer.body["runs"] == 2
    assert "in_reply_to" in answer.body  # republished under the new id, with a ce_id


def test_a_pipeline_applied_on_another_partition_is_applied_once(planner: Installation) -> None:
    definition = daily("elsewhere")
    wrong = (partition_of("elsewhere", PARTITIONS) + 1) % PARTITIONS
    ce_id = planner.publish(Topic.PIPELINES, "elsewhere", PipelineApplied(pipeline=definition), partition=wrong)
    planner.wait_answer(ce_id, Topic.PIPELINE_EVENTS)
    until(lambda: planner.value("SELECT count(*) FROM pipeline_copy") == 0, "the copy was recognised")
    answers = [e for e in planner.events(Topic.PIPELINE_EVENTS) if e.body.get("in_reply_to") == ce_id]
    assert len(answers) == 1


def test_a_misplaced_message_is_handled_by_its_owner(planner: Installation) -> None:
    body = BackfillRequested.model_validate({"pipeline": "p", "from": "2017-01-01", "to": "2017-01-02"})
    ce_id = planner.publish(Topic.BACKFILL_REQUESTS, key_on(2), body, partition=1)
    assert planner.wait_answer(ce_id).body["type"] == "BackfillPlanned"
    assert planner.value("SELECT shard FROM backfill WHERE id = %s", key_on(2)) == 2


def test_a_removed_pipeline_is_unknown(planner: Installation) -> None:
    planner.publish(Topic.PIPELINES, "removed", None)
    planner.wait_event(Topic.PIPELINE_EVENTS, lambda e: e.body["type"] == "PipelineRemoved", "the removal")
    id = planner.request("removed", "2020-01-01", "2020-01-02")
    assert planner.outcome(id).body["reason"] == "unknown_pipeline"


def test_deadlines_of_the_queued_time_are_armed_with_the_runs(planner: Installation) -> None:
    planner.apply(daily("dl", deadlines=[alert("soon", "RUN_QUEUED_AT", 60), alert("past", "RUN_QUEUED_AT", -5)]))
    id = planner.request("dl", "2020-01-01", "2020-01-10")
    planner.outcome(id)
    rows = planner.query("SELECT alert, state, count(*) AS n FROM deadline GROUP BY alert, state ORDER BY alert")
    assert rows == [{"alert": "past", "state": "void", "n": 10}, {"alert": "soon", "state": "armed", "n": 10}]
    shards = planner.query("SELECT id, shard FROM deadline")
    assert all(row["shard"] == partition_of(str(row["id"]), PARTITIONS) for row in shards)


def test_the_trace_of_a_request_goes_with_its_answer_and_to_its_runs(planner: Installation) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = BackfillRequested.model_validate({"pipeline": "traced", "from": "2020-01-01", "to": "2020-01-02"})
    planner.publish(Topic.BACKFILL_REQUESTS, "traced", request, headers={"traceparent": trace})
    assert planner.outcome("traced").headers["traceparent"] == trace
    assert planner.value("SELECT traceparent FROM backfill WHERE id = 'traced'") == trace
    planner.publish(Topic.BACKFILL_REQUESTS, "nonsense", request, headers={"traceparent": "nonsense"})
    assert "traceparent" not in planner.outcome("nonsense").headers


# dates


def request_dates(planner: Installation, pipeline: str, *dates: str) -> Event:
    id = f"{pipeline}-{'-'.join(each[-2:] for each in dates)}"
    body = {"pipeline": pipeline, "intervals": dates}
    planner.publish(Topic.BACKFILL_REQUESTS, id, BackfillRequested.model_validate(body))
    return planner.outcome(id)


def test_backfills_whose_dates_interleave_are_active_together(planner: Installation) -> None:
    planner.apply(daily("dates"))
    first = request_dates(planner, "dates", "2020-01-01", "2020-01-05", "2020-01-03")
    assert (first.body["type"], first.body["runs"]) == ("BackfillPlanned", 3)
    assert (first.body["range_start"], first.body["range_end"]) == ("2020-01-01T00:00:00Z", "2020-01-06T00:00:00Z")
    assert request_dates(planner, "dates", "2020-01-02", "2020-01-04").body["type"] == "BackfillPlanned"
    loser = request_dates(planner, "dates", "2020-01-06", "2020-01-04").body
    assert (loser["reason"], loser["conflicting_backfill_id"]) == ("overlap", "dates-02-04")
    whole = planner.outcome(planner.request("dates", "2020-01-05", "2020-01-09")).body
    assert (whole["reason"], whole["conflicting_backfill_id"]) == ("overlap", first.key)
    assert planner.outcome(planner.request("dates", "2020-01-06", "2020-01-09")).body["type"] == "BackfillPlanned"


def test_the_constraint_refuses_an_overlap_that_no_planner_saw(planner: Installation) -> None:
    """With ranges, parts, and ranges that fill the gaps between parts."""
    planner.apply(daily("unseen"))
    known = request_dates(planner, "unseen", "2020-01-01", "2020-01-03").key
    copy = (
        "INSERT INTO backfill SELECT (jsonb_populate_record(b, jsonb_build_object('id', %s::text, 'covers', %s::text,"
        " 'covers_parts', %s::text))).* FROM backfill AS b WHERE id = %s RETURNING id"
    )
    gap, day = "[2020-01-02T00:00:00Z,2020-01-03T00:00:00Z)", "[2020-01-03T00:00:00Z,2020-01-04T00:00:00Z)"
    with pytest.raises(Exception, match="backfill_no_overlap"):
        planner.query(copy, "one", day, None, known)
    with pytest.raises(Exception, match="backfill_no_overlap"):
        planner.query(copy, "one", "[2019-01-01T00:00:00Z,2021-01-01T00:00:00Z)", f"{{{gap},{day}}}", known)
    assert planner.query(copy, "one", gap, None, known) == [{"id": "one"}]
