"""Schema-conforming messages with random damage: readers refuse them and never crash."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.definitions import daily, key_on
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.quiet import is_quiet

from retrofill_core.bus.clients import producer
from retrofill_core.bus.envelope import Record, dead_letter, read_headers
from retrofill_core.bus.handler import Received
from retrofill_core.bus.worker.batches import triage
from retrofill_core.contract.base import Message, Undecodable, decode
from retrofill_core.contract.topics import PLANNER, SERVICES, Topic, partition_of
from retrofill_core.contract.topics_of import TRAFFIC

REQUESTS = {topic: TRAFFIC[topic].types for service in SERVICES.values() for topic in service.reads}
MESSAGES = 500
# Plausible words, so that messages refer to existing pipelines, backfills and each other; and
# difficult words.
NAMES = ["p", "q", "b-1", "b-2", "only", "UTC", "@daily", "*/5 * * * *", "Europe/Berlin"]
TROUBLE = [
    "",
    " ",
    "\0",
    "\ud83d",
    "é" * 300,
    "'; --",
    "<b>",
    "a\nb",
    "@never",
    "0 0 30 2 *",
    "x" * 5_000,
    "null",
    "../..",
]
DATES = ["2024-01-01", "2024-01-09", "2024-02-30", "0001-01-01", "9999-12-31", "2024-06-01"]
MOMENTS = [
    "2024-01-01T00:00:00Z",
    "2030-01-01T00:00:00+14:00",
    "2024-03-10T02:30:00-05:00",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-05:00",
]
NUMBERS = [0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**64), 0.5, 1e308, float("nan"), float("inf"), True]
BROKEN: list[Any] = [None, [], {}, "", *TROUBLE, *NUMBERS, *DATES, *MOMENTS]


@dataclass(frozen=True)
class Fuzzed:
    """One message as published."""

    topic: Topic
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int

    def record(self) -> Record:
        """The message as consumed."""
        headers, bad = read_headers(self.headers)
        return Record(self.topic, self.partition, 7, self.key, self.value, headers, self.headers, 1, bad)


# schema-conforming messages


def made_of(schema: dict[str, Any], definitions: dict[str, Any], random: Random) -> Any:
    """A value that the schema allows or nearly allows: patterns and lengths are left to chance."""
    if "$ref" in schema:
        return made_of(definitions[schema["$ref"].rpartition("/")[2]], definitions, random)
    if "const" in schema:
        return schema["const"]
    if "properties" in schema and "anyOf" in schema:
        # Several sets of required fields.
        one = random.choice(schema["anyOf"])
        required = [*schema.get("required", ()), *one["required"]]
        return _object({**schema, "required": required}, definitions, random)
    for chosen in ("enum", "anyOf", "oneOf"):
        if chosen in schema:
            one = random.choice(schema[chosen])
            return one if chosen == "enum" else made_of(one, definitions, random)
    make = MAKERS.get(schema.get("type", ""))
    return random.choice([*BROKEN, {"a": [1]}]) if make is None else make(schema, definitions, random)


def _object(schema: dict[str, Any], definitions: dict[str, Any], random: Random) -> dict[str, Any]:
    required = schema.get("required", ())
    return {
        name: made_of(field, definitions, random)
        for name, field in schema.get("properties", {}).items()
        if name in required or random.random() < 0.3
    }


def _integer(schema: dict[str, Any], _: dict[str, Any], random: Random) -> int:
    least = int(schema.get("minimum", -2))
    return random.choice([least, least + 1, min(int(schema.get("maximum", 2**63 - 1)), 2**63 - 1)])


def _string(schema: dict[str, Any], _: dict[str, Any], random: Random) -> str:
    return random.choice({"date": DATES, "date-time": MOMENTS}.get(schema.get("format", ""), NAMES))


MAKERS: dict[str, Callable[[dict[str, Any], dict[str, Any], Random], Any]] = {
    "object": _object,
    "array": lambda schema, more, random: [
        made_of(schema.get("items", {}), more, random) for _ in range(random.randint(0, 2))
    ],
    "string": _string,
    "integer": _integer,
    "number": lambda _, __, random: random.choice([0, 0.5, 60, 1e9]),
    "boolean": lambda _, __, random: random.random() < 0.5,
    "null": lambda *_: None,
}
SCHEMAS: dict[type[Message], dict[str, Any]] = {
    type: type.model_json_schema(by_alias=True) for types in REQUESTS.values() for type in types
}


def well_made(type: type[Message], random: Random) -> dict[str, Any]:
    """A body that is usually valid and can be handled."""
    schema = SCHEMAS[type]
    body: dict[str, Any] = {**made_of(schema, schema.get("$defs", {}), random), "type": type.__name__, "version": 1}
    if "from" in body:
        body.pop("intervals", None)
        body |= {"pipeline": random.choice("pq"), "from": random.choice(DATES), "to": random.choice(DATES)}
    if isinstance(body.get("pipeline"), dict):
        # A fully random definition is almost never valid.
        made = body["pipeline"]
        body["pipeline"] = {**made, **daily(random.choice("pq")).as_json()}
        kept = random.choice(sorted(made))
        body["pipeline"][kept] = made[kept]
    return body


# damage


def broken(body: Any, random: Random) -> Any:
    """The body with one random change at a random place."""
    if isinstance(body, dict | list) and body and random.random() < 0.6:
        inside = random.choice(list(body)) if isinstance(body, dict) else random.randrange(len(body))
        changed = copy.copy(body)
        what = random.random()
        if what < 0.2:
            del changed[inside]
        elif what < 0.3 and isinstance(changed, dict):
            changed[random.choice(NAMES + TROUBLE)] = changed[inside]
        else:
            changed[inside] = broken(body[inside], random)
        return changed
    nested: Any = body
    # Large values are not enlarged further.
    match random.randrange(4) if len(repr(body)) < 2_000 else 3:
        case 0:
            for _ in range(random.choice([1, 5, 98, 300])):
                nested = [nested] if random.random() < 0.5 else {"x": nested}
            return nested
        case 1:
            return [body] * random.choice([0, 2, 300])
        case 2:
            return str(body) * 50
        case _:
            return random.choice(BROKEN)


def cut(value: bytes, random: Random) -> bytes:
    """The encoded message, truncated or corrupted."""
    at = random.randrange(len(value) + 1)
    return random.choice([value[:at], value[:at] + b"\xff" + value[at:], b"\0\0\0\0\1" + value, value + value])


def fuzzed(random: Random, topics: list[Topic]) -> Fuzzed:
    """A message for one of ``topics``: valid, damaged, or not a message at all."""
    topic = random.choice(topics)
    # Occasionally use a type of another topic.
    types = REQUESTS[topic if random.random() < 0.9 else random.choice(list(REQUESTS))]
    body: Any = well_made(random.choice(types), random)
    for _ in range(random.choice([0, 0, 1, 1, 2, 5])):
        body = broken(body, random)
    value: bytes | None = json.dumps(body).encode()
    if random.random() < 0.1:
        value = random.choice([None, cut(value or b"", random)])
    named = body.get("backfill_id") or body.get("id") if isinstance(body, dict) else None
    key = random.choice(
        [str(named).encode("utf-8", "replace"), b"p", b"q", b"b-1", b"b-2", None, b"", b"\xff", b"k" * 300]
    )
    headers = [
        (name, random.choice([b"c-1", b"c-2", b"", None, b"\xff", b"\0", b"x" * 60_000])) for name in ("ce_id", "x")
    ]
    kept = tuple(header for header in headers if random.random() < 0.2)
    at_home = partition_of(key or b"", PARTITIONS)
    return Fuzzed(topic, key, value, kept, at_home if random.random() < 0.8 else random.randrange(PARTITIONS))


# The first draws depend on the machine's load, which says nothing about the code.
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_but_undecodable_comes_of_any_message(seed: int) -> None:
    given = fuzzed(Random(seed), list(REQUESTS))
    verdict = triage(given.record(), PARTITIONS, "topic-id")
    letter = dead_letter(given.record(), "a reason", "a-service")
    assert letter.topic == Topic.DEAD_LETTERS
    try:
        message = decode(given.value)
    except Undecodable as e:
        assert len(str(e).splitlines()) == 1
        assert not (isinstance(verdict, Received) and verdict.message is not None)
    else:
        # Accepted messages can be stored and forwarded.
        assert decode(message.encode()) == message


def test_every_request_type_is_made_well_and_badly() -> None:
    """Otherwise the tests of this module would test nothing."""
    read: set[str] = set()
    refused: set[Topic] = set()
    for seed in range(2_000):
        given = fuzzed(Random(seed), list(REQUESTS))
        try:
            read.add(decode(given.value).type)
        except Undecodable:
            refused.add(given.topic)
    assert read == {type.__name__ for types in REQUESTS.values() for type in types}
    assert refused == set(REQUESTS)


def test_a_planner_survives_hundreds_of_them(installation: Installation) -> None:
    planner = installation.start("backfill-planner", RETROFILL_MAX_PLAN_RUNS="1000")
    for name in ("p", "q", "steady"):
        installation.apply(daily(name))
    client = producer(installation.settings, "test")
    for seed in range(MESSAGES):
        given = fuzzed(Random(seed), list(PLANNER.reads))
        client.produce(
            f"{installation.settings.topic_prefix}{given.topic}",
            key=given.key,
            value=given.value,
            headers=list(given.headers),
            partition=given.partition,
        )
    assert client.flush(60) == 0
    asked = [
        installation.request("steady", f"2024-05-{p + 1:02}", f"2024-05-{p + 1:02}", id=key_on(p))
        for p in range(PARTITIONS)
    ]
    assert [installation.outcome(id).body["type"] for id in asked] == ["BackfillPlanned"] * PARTITIONS
    until(lambda: is_quiet(installation, [PLANNER]), "every partition is read to its end")
    assert planner.process.poll() is None
    reasons = [letter.headers["retrofill_reason"] for letter in installation.events(Topic.DEAD_LETTERS)]
    # Every refusal was deliberate: none was caused by an error in our code or the database.
    assert len(reasons) > MESSAGES / 10
    assert [reason for reason in reasons if re.match(r"\w+(Error|Exception|Violation|\w*Large): ", reason)] == []
    answered = {event.body["type"] for event in installation.events(Topic.BACKFILL_EVENTS)}
    assert {"BackfillPlanned", "BackfillRejected", "BackfillCommandRejected"} <= answered
