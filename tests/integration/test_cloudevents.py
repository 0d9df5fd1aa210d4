"""Published messages are valid CloudEvents, checked with the CloudEvents SDK, and fit the contract.
Messages made by that SDK are accepted.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import kafka
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import Message as Published
from jsonschema import Draft202012Validator
from tests.support.contract import headers_of, topics, value_of
from tests.support.definitions import alert, daily
from tests.support.events import text_headers
from tests.support.installation import Installation, until
from tests.support.servers import Servers

from retrofill_core.bus.clients import admin, producer, reader
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
# The topics that the services of this module publish on.
FILLED = {
    Topic.PIPELINE_EVENTS,
    Topic.BACKFILL_EVENTS,
    Topic.RUN_EVENTS,
    Topic.BACKFILL_STATES,
    Topic.INTERVAL_STATES,
    Topic.DEADLINES,
    Topic.DEADLINE_MISSED,
    Topic.CALLBACK_REQUESTS,
    Topic.DEAD_LETTERS,
}


@pytest.fixture(scope="module")
def worked(servers: Servers) -> Iterator[Installation]:
    """An installation in which backfills ran, deadlines were missed and one message was poison."""
    made = servers.installation()
    try:
        made.start("backfill-planner", wait=False)
        made.start("instant-starter", wait=False, INSTANT_FAIL="2020-01-02")
        made.start("deadline-watcher")
        made.apply(daily(deadlines=[alert("late", "LOGICAL_DATE", 60, fire_if_past=True, callback="page_oncall")]))
        made.publish(
            Topic.BACKFILL_REQUESTS,
            "b-1",
            BackfillRequested.model_validate({"pipeline": "p", "from": "2020-01-01", "to": "2020-01-03"}),
            headers={"traceparent": TRACE},
        )
        made.publish(Topic.BACKFILL_REQUESTS, "b-2", b"{")
        made.publish_aborted(Topic.BACKFILL_EVENTS, "b-1", b'{"type": "BackfillSucceeded", "backfill_id": "b-1"}')
        made.wait_state("b-1", "failed")
        until(lambda: all(made.events(topic) for topic in FILLED), "all is published")
        made.wait_published()
        yield made
    finally:
        made.close()


def records(made: Installation, topic: Topic) -> list[Published]:
    """All committed records of a topic, as the plain Kafka client returns them."""
    consumer = reader(made.settings, f"test-{uuid.uuid4().hex[:6]}", **{"isolation.level": "read_committed"})
    try:
        name, partitions = f"{made.settings.topic_prefix}{topic}", made.settings.partitions
        consumer.assign([TopicPartition(name, partition, 0) for partition in range(partitions)])
        found: list[Published] = []
        ends = 0
        while ends < partitions:
            record = consumer.poll(20)
            assert record is not None, f"{topic} cannot be read"
            if (error := record.error()) is None:
                found.append(record)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends += 1
        return found
    finally:
        consumer.close()


def event_of(record: Published) -> BaseCloudEvent:
    """A record as the SDK parses it."""
    headers = {name: value for name, value in dict(record.headers() or ()).items() if isinstance(value, bytes)}
    return kafka.from_binary_event(kafka.KafkaMessage(headers, record.key(), record.value() or b""))


def test_the_answer_to_a_request_is_an_event_with_all_attributes(worked: Installation) -> None:
    (planned,) = [
        record
        for record in records(worked, Topic.BACKFILL_EVENTS)
        if json.loads(record.value() or b"")["type"] == "BackfillPlanned"
    ]
    event, headers = event_of(planned), text_headers(planned)
    assert event.get_specversion() == "1.0"
    assert uuid.UUID(event.get_id()) == uuid.UUID(headers["ce_id"])
    assert event.get_type() == "BackfillPlanned"
    assert event.get_source() == "backfill-planner"
    assert event.get_datacontenttype() == "application/json"
    time = event.get_time()
    assert time is not None and time.utcoffset() is not None
    assert time == datetime.fromisoformat(headers["ce_time"])
    # The key identifies the subject; there is no second attribute for it.
    assert event.get_extension("partitionkey") == "b-1"
    assert (event.get_subject(), event.get_dataschema()) == (None, None)
    data = event.get_data()
    assert data == json.loads(planned.value() or b"")
    assert isinstance(data, dict)
    assert (data["backfill_id"], data["runs"], data["version"]) == ("b-1", 3, 1)
    assert headers["traceparent"].split("-")[1] == TRACE.split("-")[1]


def test_what_was_not_committed_is_no_event(worked: Installation) -> None:
    fields = [event_of(record).get_type() for record in records(worked, Topic.BACKFILL_EVENTS)]
    assert sorted(each for each in fields if each != "BackfillProgress") == ["BackfillFailed", "BackfillPlanned"]
    uncommitted = worked.events(Topic.BACKFILL_EVENTS, isolation="read_uncommitted")
    assert "BackfillSucceeded" in {event.body["type"] for event in uncommitted}


@pytest.mark.parametrize("topic", sorted(FILLED - {Topic.DEAD_LETTERS}))
def test_every_message_of_a_service_is_an_event_that_fits_the_contract(worked: Installation, topic: Topic) -> None:
    found = records(worked, topic)
    assert found
    events = [event_of(record) for record in found]
    assert len({event.get_id() for event in events}) == len(events)
    for record, event in zip(found, events, strict=True):
        assert event.get_type() in topics()["channels"][topic]["messages"]
        assert event.get_source() in {"backfill-planner", "run-starter", "deadline-watcher"}
        assert event.get_datacontenttype() == "application/json"
        headers_of(event.get_type()).validate(text_headers(record))
        value_of(event.get_type()).validate(event.get_data())


def test_a_dead_letter_has_the_headers_of_the_contract(worked: Installation) -> None:
    (letter,) = records(worked, Topic.DEAD_LETTERS)
    assert (letter.key(), letter.value()) == (b"b-2", b"{")
    headers = text_headers(letter)
    headers_of("DeadLetter").validate(headers)
    assert headers.keys() <= topics()["components"]["schemas"]["DeadLetterHeaders"]["properties"].keys()
    assert not Draft202012Validator(topics()["components"]["schemas"]["DeadLetterHeaders"]).is_valid({})


def test_an_event_that_the_package_makes_is_a_request(worked: Installation) -> None:
    asked = CloudEvent(
        {
            "type": "BackfillRequested",
            "source": "/orders",
            "datacontenttype": "application/json",
            "partitionkey": "b-3",
        },
        {"type": "BackfillRequested", "pipeline": "p", "from": "2020-02-01", "to": "2020-02-02"},
    )
    message = kafka.to_binary_event(asked)
    client = producer(worked.settings, "test")
    client.produce(
        f"{worked.settings.topic_prefix}{Topic.BACKFILL_REQUESTS}",
        key=message.key,
        value=message.value,
        headers=list(message.headers.items()),
    )
    assert client.flush(20) == 0
    answer = worked.wait_answer(asked.get_id())
    assert (answer.key, answer.body["type"], answer.body["runs"]) == ("b-3", "BackfillPlanned", 2)


def test_topics_are_configured_as_the_document_says(worked: Installation) -> None:
    client = admin(worked.settings, "test")
    for topic in Topic:
        resource = ConfigResource(ResourceType.TOPIC, f"{worked.settings.topic_prefix}{topic}")
        described = client.describe_configs([resource], request_timeout=20)[resource].result()
        said = topics()["channels"][topic]["bindings"]["kafka"]["topicConfiguration"]
        assert {name: described[name].value for name in said} == {
            name: ",".join(value) if isinstance(value, list) else str(value) for name, value in said.items()
        }
        # Topic settings that the document omits have the broker's defaults.
        assert ("cleanup.policy" in said) == (described["cleanup.policy"].value != "delete")
        assert ("retention.ms" in said) == (described["retention.ms"].value == "-1")
