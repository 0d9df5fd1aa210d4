"""Every kind of bad input, published on the real topics in one go. Each has its outcome, and none
stops its partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.integration.bad_input_cases import CASES, HUGE, MAX_CONF, REQUESTS, Answer, Dead, applied, request
from tests.support.definitions import daily, key_on
from tests.support.events import Event
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.quiet import is_quiet
from tests.support.raw_header import publish_with_header
from tests.support.servers import Servers

from retrofill_core.bus.clients import producer
from retrofill_core.bus.envelope import DEAD_LETTER_PREFIX
from retrofill_core.contract.topics import PLANNER, RUN_STARTER, WATCHER, Topic, partition_of

# The pipelines that exist. The requests that follow the cases use "good".
PIPELINES = {
    "bad": daily("bad"),
    "good": daily("good"),
    "minutely": daily("minutely", schedule="* * * * *"),
    "hourly": daily("hourly", schedule="@hourly", timezone="America/New_York"),
    "gap": daily("gap", schedule="@hourly", timezone="America/New_York"),
}
SERVICES = (PLANNER, RUN_STARTER, WATCHER)


@dataclass
class Outcome:
    """The installation, and everything published in response to the cases."""

    made: Installation
    letters: list[Event]
    answers: list[Event]


@pytest.fixture(scope="module")
def outcome(servers: Servers) -> Iterator[Outcome]:
    """Publish all cases, each followed by a good message on its partition, and wait for all
    outcomes.
    """
    made = servers.installation()
    try:
        made.start(
            "instant-starter",
            wait=False,
            RETROFILL_DRIVER_SLOTS="1",
            INSTANT_SECONDS="3600",
            RETROFILL_LEASE_SECONDS="900",
        )
        made.start("deadline-watcher", wait=False)
        made.start("backfill-planner", RETROFILL_MAX_CONF_BYTES=str(MAX_CONF))
        for pipeline in PIPELINES.values():
            made.apply(pipeline)
        made.request("good", "2024-01-01", "2024-01-01", id="known")
        made.outcome("known")
        # The only attempt, because there is one driver.
        until(lambda: made.runs_by_state("known") == {"running": 1}, "its run has a driver")
        publish(made)
        until(lambda: is_quiet(made, SERVICES), "all messages are handled and all answers published")
        yield Outcome(
            made,
            made.events(Topic.DEAD_LETTERS),
            made.events(Topic.BACKFILL_EVENTS) + made.events(Topic.PIPELINE_EVENTS),
        )
    finally:
        made.close()


def publish(made: Installation) -> None:
    """Publish all cases and their followers, using a client with large limits."""
    client = producer(made.settings, "test", **{"message.max.bytes": 4 * HUGE, "compression.type": "zstd"})
    for n, (name, case) in enumerate(CASES.items()):
        key = name.encode() if case.key is ... else case.key
        partition = (partition_of(key or b"", PARTITIONS) + case.away) % PARTITIONS
        put(client, made, case.topic, key, case.bytes(), partition, (("ce_id", name.encode()), *case.headers))
        topic, after, body = follower(n, case.topic, partition)
        put(client, made, topic, after.encode(), json.dumps(body).encode(), partition, (("ce_id", after.encode()),))
    assert client.flush(60) == 0
    key = key_on(0)
    publish_with_header(
        made.settings.bootstrap_servers(),
        f"{made.settings.topic_prefix}{REQUESTS}",
        0,
        key.encode(),
        b"{}",
        b"na\xffme",
    )
    put(client, made, REQUESTS, key.encode(), b'{"type": "BackfillPauseRequested"}', 0, (("ce_id", b"after-the-name"),))
    assert client.flush(60) == 0


def put(
    client: Producer,
    made: Installation,
    topic: Topic,
    key: bytes | None,
    value: bytes | None,
    partition: int,
    headers: tuple[tuple[str, bytes], ...],
) -> None:
    failed = []
    client.produce(
        f"{made.settings.topic_prefix}{topic}",
        key=key,
        value=value,
        partition=partition,
        headers=list(headers),
        on_delivery=lambda error, _: failed.append(error) if error else None,
    )
    client.poll(0)
    assert not failed, failed


def follower(n: int, topic: Topic, partition: int) -> tuple[Topic, str, dict[str, Any]]:
    """A good message right after the n-th case, on its partition (as a request, unless the case is
    on ``pipelines``). Returns topic, key and body.
    """
    prefix = f"after-{n}"
    key = next(key for i in range(1000) if partition_of(key := f"{prefix}-{i}", PARTITIONS) == partition)
    if topic == Topic.PIPELINES:
        return topic, key, applied(key)
    after = (date(2020, 1, 1) + timedelta(days=n)).isoformat()
    return REQUESTS, key, request("good", **{"from": after, "to": after})


@pytest.mark.parametrize("name", CASES)
def test_bad_input_has_its_outcome_and_no_other(outcome: Outcome, name: str) -> None:
    case = CASES[name]
    letters = [letter for letter in outcome.letters if letter.headers.get("ce_id", "").rstrip("\0") == name]
    answers = [answer for answer in outcome.answers if answer.body.get("in_reply_to") == name]
    match case.outcome:
        case Dead(reason, cut):
            assert (len(letters), answers) == (1, [])
            ours = {
                n.removeprefix(DEAD_LETTER_PREFIX): text
                for n, text in letters[0].headers.items()
                if n.startswith(DEAD_LETTER_PREFIX)
            }
            assert reason in ours["reason"]
            assert len(ours["reason"]) <= 500
            assert ours["origin_topic"] == case.topic
            assert (letters[0].value == (case.bytes() or b"")) != ("value_sha256" in ours)
            assert bool({"value_sha256", "key_sha256", "headers_dropped"} & set(ours)) == cut
        case Answer(type, fields):
            assert (letters, [answer.body["type"] for answer in answers]) == ([], [type])
            assert {field: answers[0].body.get(field) for field in fields} == fields


@pytest.mark.parametrize("name", CASES)
def test_the_partition_goes_on(outcome: Outcome, name: str) -> None:
    after = f"after-{list(CASES).index(name)}-"
    answers = [e.body["type"] for e in outcome.answers if e.body.get("in_reply_to", "").startswith(after)]
    assert answers == ["PipelineAccepted" if CASES[name].topic == Topic.PIPELINES else "BackfillPlanned"]


def test_a_header_whose_name_is_no_text_is_a_dead_letter(outcome: Outcome) -> None:
    (letter,) = [
        each
        for each in outcome.letters
        if each.headers[f"{DEAD_LETTER_PREFIX}reason"].startswith("the name of a header")
    ]
    assert (letter.key, letter.value) == (key_on(0), b"{}")
    (answer,) = [each for each in outcome.answers if each.body.get("in_reply_to") == "after-the-name"]
    assert answer.body["type"] == "BackfillCommandRejected"


def test_nothing_bad_left_a_row(outcome: Outcome) -> None:
    made = outcome.made
    planned = [e.body for e in outcome.answers if e.body["type"] == "BackfillPlanned"]
    assert {row["id"] for row in made.query("SELECT id FROM backfill")} == {body["backfill_id"] for body in planned}
    assert made.value("SELECT count(*) FROM run") == sum(body["runs"] for body in planned)
    accepted = {e.key for e in outcome.answers if e.body["type"] == "PipelineAccepted"}
    assert {row["name"] for row in made.query("SELECT name FROM pipeline")} == accepted
    assert made.query("SELECT id, backfill_id, state FROM attempt") == [
        {"id": 1, "backfill_id": "known", "state": "running"}
    ]
    assert made.value("SELECT count(*) FROM deadline") == 0
    assert made.value("SELECT count(*) FROM pipeline_copy") == 0
    assert all(replica.process.poll() is None for replica in made.replicas)
