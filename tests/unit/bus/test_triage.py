"""The verdict on one message before any handler sees it."""

import json
import uuid

import pytest

import retrofill_core.contract  # noqa: F401  registers every message type
from retrofill_core.bus.envelope import MAX_HEADER_BYTES, Record, read_headers
from retrofill_core.bus.handler import Received
from retrofill_core.bus.worker.batches import MAX_KEY, Dead, Misplaced, triage
from retrofill_core.contract.backfills import BackfillPauseRequested, BackfillRequested
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import Topic, partition_of

PARTITIONS = 4
TOPIC_ID = "topic-id"
BODY = {"type": "BackfillPauseRequested"}
PIPELINE = {
    "type": "PipelineApplied",
    "pipeline": {
        "name": "p",
        "schedule": "@daily",
        "tasks": [{"name": "t"}],
        "code": {"module": "m", "attribute": "p"},
    },
}


def record(value=BODY, key="b-1", topic=Topic.BACKFILL_REQUESTS, headers=(), partition=None, offset=9):
    raw = json.dumps(value).encode() if isinstance(value, dict | list) else value
    key = key.encode() if isinstance(key, str) else key
    read, bad = read_headers(headers)
    home = partition_of(key or b"", PARTITIONS) if partition is None else partition
    return Record(str(topic), home, offset, key, raw, read, tuple(headers), 1, bad)


def elsewhere(key):
    return (partition_of(key, PARTITIONS) + 1) % PARTITIONS


def verdict(given, topic_id=TOPIC_ID):
    return triage(given, PARTITIONS, topic_id)


def test_a_message_made_by_hand_needs_no_headers():
    made = verdict(record())
    assert isinstance(made, Received)
    assert (made.key, made.message, made.misplaced) == ("b-1", BackfillPauseRequested(), False)


def test_the_type_of_the_header_counts_before_the_bodys():
    body = {"type": "BackfillPauseRequested", "pipeline": "p", "from": "2024-01-01", "to": "2024-01-02"}
    made = verdict(record(body, headers=[("ce_type", b"BackfillRequested"), ("ce_id", b"c-1")]))
    assert isinstance(made.message, BackfillRequested)
    assert made.message.type == "BackfillRequested"
    assert made.ce_id == "c-1"


# What else no message can be, the tests of ``decode`` know.
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (record(None), "the value is null"),
        (record(b"{"), "not JSON"),
        (record(b'{"type": "\xff"}'), "not UTF-8"),
        (record(b'{"type": "Elsewhere"}'), "unknown message type"),
        (record(b'{"type": "BackfillRequested", "from": "2024-01-01"}'), "pipeline"),
        (record(key=b"\xff\xfe"), "not UTF-8"),
        (record(key="x" * (MAX_KEY + 1)), "invalid key"),
        (record(key="a\nb"), "invalid key"),
        (record(key="a\x00b"), "invalid key"),
        (record(headers=[("ce_id", b"c-1"), ("ce_source", b"\xff")]), "ce_source"),
        (record(headers=[("ce_id", b"c\0")]), "NUL"),
    ],
)
def test_what_cannot_be_read_is_dead_with_the_reason(given, reason):
    made = verdict(given)
    assert isinstance(made, Dead)
    assert made.record is given
    assert reason in made.reason
    assert "\n" not in made.reason


def test_the_longest_key_is_read():
    assert isinstance(verdict(record(key="x" * MAX_KEY)), Received)


def test_headers_that_no_answer_could_carry_on_are_dead():
    fits = [("ce_id", b"x" * (MAX_HEADER_BYTES - len("ce_id")))]
    assert isinstance(verdict(record(headers=fits)), Received)
    made = verdict(record(headers=[*fits, ("y", b"")]))
    assert isinstance(made, Dead)
    assert "50,001 bytes, more than 50,000" in made.reason


# misplaced keys


def test_a_message_on_another_partition_is_published_again_and_not_handled():
    given = record(partition=elsewhere("b-1"), headers=[("ce_id", b"c-1")])
    assert verdict(given) == Misplaced(given, "b-1", "c-1")


def test_a_misplaced_message_is_sent_on_whatever_it_holds():
    """The owner of the key judges it, so the dead letter is written once and in the order of the
    key.
    """
    assert isinstance(verdict(record(b"{", partition=elsewhere("b-1"))), Misplaced)


@pytest.mark.parametrize("topic", [Topic.BACKFILL_EVENTS, Topic.RUN_EVENTS, Topic.DEADLINES])
def test_what_only_services_write_is_dead_on_a_wrong_partition(topic):
    """Services never misplace these messages, and the reader may not write them again."""
    made = verdict(record(topic=topic, partition=elsewhere("b-1")))
    assert isinstance(made, Dead)
    assert "does not match the key" in made.reason


def test_a_compacted_topic_is_applied_where_it_arrives_too():
    given = record(PIPELINE, key="p", topic=Topic.PIPELINES, partition=elsewhere("p"))
    moved, received = verdict(given)
    assert moved == Misplaced(given, "p", received.ce_id)
    assert received.misplaced
    assert isinstance(received.message, PipelineApplied)


def test_a_bad_message_on_a_compacted_topic_is_dead_wherever_it_arrives():
    assert isinstance(verdict(record(b"{", key="p", topic=Topic.PIPELINES, partition=elsewhere("p"))), Dead)


def test_null_on_a_compacted_topic_is_a_message():
    made = verdict(record(None, key="p", topic=Topic.PIPELINES))
    assert isinstance(made, Received)
    assert (made.key, made.message) == ("p", None)
    moved, received = verdict(record(None, key="p", topic=Topic.PIPELINES, partition=elsewhere("p")))
    assert moved.key == "p"
    assert received.message is None and received.misplaced


# missing keys


@pytest.mark.parametrize("key", [None, b""])
@pytest.mark.parametrize("topic", [topic for topic in Topic if topic != Topic.BACKFILL_REQUESTS])
def test_without_a_key_only_a_request_is_anything(topic, key):
    made = verdict(record(key=key, topic=topic))
    assert isinstance(made, Dead)
    assert "no key" in made.reason


@pytest.mark.parametrize("key", [None, b""])
@pytest.mark.parametrize("partition", range(PARTITIONS))
def test_a_request_without_a_key_gets_a_fresh_id_that_is_the_same_for_ever(key, partition):
    given = record(key=key, partition=partition)
    made = verdict(given)
    assert isinstance(made, Misplaced)
    assert uuid.UUID(made.key)
    assert verdict(given) == made
    others = {verdict(record(key=key, partition=partition, offset=n)).key for n in (9, 10)}
    assert len(others) == 2
    assert verdict(given, "recreated").key != made.key


def test_a_request_without_a_key_keeps_the_id_that_it_names():
    made = verdict(record({**BODY, "id": "mine"}, key=None, headers=[("ce_id", b"c-1")]))
    assert (made.key, made.ce_id) == ("mine", "c-1")


@pytest.mark.parametrize("named", ["", 3, None, [], "x" * (MAX_KEY + 1), "a\nb"])
def test_an_id_in_the_body_that_could_be_no_key_is_not_taken(named):
    made = verdict(record({**BODY, "id": named}, key=None, headers=[("ce_id", b"c-1")]))
    assert (made.key, made.ce_id) == ("c-1", "c-1")


@pytest.mark.parametrize("value", [None, b"{", b"\xff", b"[]"])
def test_a_request_without_a_key_that_cannot_be_read_is_dead_at_once(value):
    assert isinstance(verdict(record(value, key=None)), Dead)


@pytest.mark.parametrize("ce_id", [b"x" * (MAX_KEY + 1), b"a\nb"])
def test_a_fresh_id_is_one_that_is_accepted_when_it_arrives(ce_id):
    """Otherwise the copy would become a dead letter for a key that its sender never chose."""
    made = verdict(record(key=None, headers=[("ce_id", ce_id)]))
    again = verdict(record(key=made.key, headers=[("ce_id", ce_id)]))
    assert isinstance(again, Received)


# derived ce_id


def test_a_derived_ce_id_depends_on_the_place_alone():
    first = verdict(record()).ce_id
    assert first == verdict(record({"type": "BackfillResumeRequested"})).ce_id
    assert uuid.UUID(first)
    assert first != verdict(record(offset=10)).ce_id
    assert first != verdict(record(), "recreated").ce_id
    # Pinned: with another derivation, old messages would no longer match their own copies.
    assert first == str(
        uuid.uuid5(uuid.UUID("4d3f9a56-7a43-5f0e-9d3b-2b6c1a0e8f11"), f"topic-id:{partition_of('b-1', 4)}:9")
    )


def test_an_empty_ce_id_counts_as_none():
    given = record(headers=[("ce_id", b"")])
    assert given.ce_id is None
    assert uuid.UUID(verdict(given).ce_id)
