"""The AsyncAPI document is valid by AsyncAPI's own schema and matches the senders and receivers in
the code.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from tests.support.asyncapi_specs import official_schema
from tests.support.contract import FOLDER, Document, found, headers_of, topics, value_of

from retrofill_core.bus.envelope import new_headers
from retrofill_core.contract.base import REGISTRY
from retrofill_core.contract.topics import SERVICES, Topic
from retrofill_core.contract.topics_of import ALWAYS, TRAFFIC
from retrofill_core.settings import Settings

ROOT = Path(__file__).parents[3]
DOCUMENT = topics()
MESSAGES = DOCUMENT["components"]["messages"]


@pytest.fixture(scope="module")
def official() -> Draft7Validator:
    """A validator with AsyncAPI's own schema."""
    return Draft7Validator(official_schema())


def with_payloads() -> Document:
    """The document with the referenced JSON Schemas inlined, so that they are validated too."""
    whole = copy.deepcopy(DOCUMENT)
    for message in whole["components"]["messages"].values():
        if "$ref" in message["payload"]:
            message["payload"] = json.loads((FOLDER / message["payload"]["$ref"]).read_text("utf-8"))
    return whole


def test_it_is_valid_and_so_are_its_payloads(official: Draft7Validator) -> None:
    assert [error.message for error in official.iter_errors(DOCUMENT)] == []
    assert [error.message for error in official.iter_errors(with_payloads())] == []


WRONG: dict[str, Callable[[Document], object]] = {
    "an action that there is not": lambda d: next(iter(d["operations"].values())).update(action="publish"),
    "an unknown field": lambda d: d["channels"]["pipelines"].update(topic="pipelines"),
    "a server without a protocol": lambda d: d["servers"]["embedded"].pop("protocol"),
    "another version": lambda d: d.update(asyncapi="2.6.0"),
    "no partitions": lambda d: d["channels"]["pipelines"]["bindings"]["kafka"].update(partitions=0),
    "a policy that Kafka has not": lambda d: d["channels"]["pipelines"]["bindings"]["kafka"][
        "topicConfiguration"
    ].update({"cleanup.policy": ["keep"]}),
    "a payload with OpenAPI's discriminator": lambda d: d["components"]["messages"]["RunStarted"]["payload"].update(
        discriminator={"propertyName": "type"}
    ),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_the_official_schema_would_refuse(official: Draft7Validator, change: Callable[[Document], object]) -> None:
    broken = with_payloads()
    change(broken)
    assert not official.is_valid(broken)


def test_it_refers_to_what_is_there() -> None:
    for reference in references(DOCUMENT):
        if reference.startswith("#/"):
            assert isinstance(found(reference), dict)
        else:
            assert (FOLDER / reference).is_file()


def references(document: Any) -> Iterator[str]:
    """All ``$ref`` values in a document."""
    for each in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from references(each)
    if isinstance(document, dict) and "$ref" in document:
        yield document["$ref"]


# topics


def test_every_type_is_on_exactly_one_topic() -> None:
    placed = [model.__name__ for traffic in TRAFFIC.values() for model in traffic.types]
    assert sorted(placed) == sorted(REGISTRY)
    assert set(TRAFFIC) == set(Topic)


def test_somebody_writes_every_topic_and_each_service_reads_what_others_write() -> None:
    for topic, traffic in TRAFFIC.items():
        assert traffic.writers or traffic.open, topic
        assert not traffic.of_others or traffic.open, topic
        for service in SERVICES.values():
            assert not (service in traffic.writers and topic in service.reads), (service.name, topic)


@pytest.mark.parametrize("topic", Topic)
def test_a_topic_has_its_address_partitions_and_messages(topic: Topic) -> None:
    channel, settings = DOCUMENT["channels"][topic], Settings.model_fields
    address = channel["address"].format(prefix=DOCUMENT["components"]["parameters"]["prefix"]["default"])
    assert address == f"{settings['topic_prefix'].default}{topic}"
    kafka = channel["bindings"]["kafka"]
    assert (kafka["partitions"], kafka["replicas"]) == (
        settings["partitions"].default,
        settings["replication_factor"].default,
    )
    assert {model.__name__ for model in TRAFFIC[topic].types} <= set(channel["messages"])
    assert len(channel["messages"]) > 0


# senders and receivers


def test_each_service_receives_what_it_reads_in_its_group() -> None:
    received = {name: each for name, each in DOCUMENT["operations"].items() if each["action"] == "receive"}
    assert set(received) == {f"{s.name}.receive.{topic}" for s in SERVICES.values() for topic in s.reads}
    for name, operation in received.items():
        service = SERVICES[name.partition(".")[0]]
        group = operation["bindings"]["kafka"]["groupId"]["default"]
        assert group == service.group(Settings.model_fields["topic_prefix"].default)
        channel = found(operation["channel"]["$ref"])
        assert len(operation["messages"]) == len(channel["messages"])


def test_every_message_is_sent_by_its_writers_and_no_others() -> None:
    senders: dict[str, set[str]] = {}
    for name, operation in DOCUMENT["operations"].items():
        if operation["action"] == "send":
            for message in operation["messages"]:
                senders.setdefault(message["$ref"].rpartition("/")[2], set()).add(name.partition(".")[0])
    assert set(senders) == set(MESSAGES)
    for traffic in TRAFFIC.values():
        for model in traffic.of_services:
            assert senders[model.__name__] == {writer.name for writer in traffic.writers}
        for model in traffic.of_others:
            assert senders[model.__name__] == {"others"}
    assert senders["DeadLetter"] == set(SERVICES)


def test_operations_are_tagged_with_who_does_them() -> None:
    known = {tag["name"] for tag in DOCUMENT["info"]["tags"]}
    assert known == {*SERVICES, "others"}
    for name, operation in DOCUMENT["operations"].items():
        assert [tag["name"] for tag in operation["tags"]] == [name.partition(".")[0]]


# messages


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_message_has_key_headers_and_an_example_that_fits(name: str) -> None:
    message = MESSAGES[name]
    assert message["summary"]
    assert message["bindings"]["kafka"]["key"]["description"]
    (example,) = message["examples"]
    value_of(name).validate(example["payload"])
    headers = headers_of(name)
    headers.validate(example["headers"])
    headers.validate(new_headers(name, "backfill-planner"))
    assert not headers.is_valid({**example["headers"], "ce_type": "Other"})
    assert not headers.is_valid({**example["headers"], "ce_specversion": "0.3"})
    assert not headers.is_valid({**example["headers"], "traceparent": "1"})


def test_only_services_must_write_headers() -> None:
    assert set(new_headers("RunStarted", "run-starter")) == set(ALWAYS)
    for traffic in TRAFFIC.values():
        for model in traffic.of_services:
            assert not headers_of(model.__name__).is_valid({})
        for model in traffic.of_others:
            assert headers_of(model.__name__).is_valid({})
