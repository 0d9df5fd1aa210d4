"""A topic that cannot store, in a cluster of two brokers: the relay holds its events, those of other
topics go on, and it recovers by itself.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic
from tests.integration.test_relay_refusals import emit, ready, values
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.second_broker import SecondBroker
from tests.support.servers import Servers

from retrofill_core.bus.clients import admin
from retrofill_core.contract.topics import Topic, partition_of

pytestmark = [pytest.mark.embedded, pytest.mark.long]
SECONDS = 120.0
GOOD, BAD = Topic.BACKFILL_EVENTS, Topic.PIPELINE_EVENTS
PARTITION = partition_of(b"k", PARTITIONS)


@pytest.fixture(scope="module")
def servers_of_two() -> Iterator[tuple[Servers, SecondBroker]]:
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        servers = Servers(Path(home))
        try:
            servers.start()
            # Kafka's own topics are created now, on the first broker.
            made = servers.installation()
            emit(made, (GOOD, b"0"))
            made.start("backfill-planner")
            made.wait_published()
            made.close()
            second = SecondBroker(servers)
            second.start()
            yield servers, second
            second.stop()
        finally:
            servers.stop()


@pytest.fixture
def two(servers_of_two: tuple[Servers, SecondBroker]) -> Iterator[tuple[Installation, SecondBroker]]:
    servers, second = servers_of_two
    second.stop()
    made = servers.installation()
    second.start()
    try:
        yield made, second
    finally:
        made.close()


def recreate(made: Installation, topic: Topic, replicas: list[list[int]], **config: str) -> None:
    client: Any = admin(made.settings, "test")
    name = f"{made.settings.topic_prefix}{topic}"
    client.delete_topics([name])[name].result(20)
    client.create_topics([NewTopic(name, len(replicas), replica_assignment=replicas, config=config)])[name].result(20)


TOO_FEW = {"replicas": [[1, 2]] * PARTITIONS, "min.insync.replicas": "2"}
NO_LEADER = {"replicas": [[2] if p == PARTITION else [1] for p in range(PARTITIONS)]}


@pytest.mark.parametrize("made_of", [TOO_FEW, NO_LEADER], ids=["too few replicas", "one partition without a leader"])
def test_a_topic_that_cannot_store_holds_only_its_events(
    two: tuple[Installation, SecondBroker], made_of: dict[str, Any]
) -> None:
    made, second = two
    recreate(made, BAD, **made_of)
    planner = made.start("backfill-planner")
    emit(made, (GOOD, b"0"), (BAD, b"zeroth"))
    made.wait_published()
    second.stop()
    ids = emit(made, (GOOD, b"1"), (BAD, b"first"), (GOOD, b"2"), (BAD, b"second"))
    until(lambda: values(made, GOOD) == [b"0", b"1", b"2"], "the others go on", planner.said, SECONDS)
    assert made.value("SELECT count(*) FROM backfill_planner_outbox") == 2
    place = f"partition {PARTITION} of {made.settings.topic_prefix}{BAD} has not stored outbox row {ids[1]}"
    assert place in (ready(made, planner)["events"] or "")
    said = [json.loads(line) for line in planner.said().splitlines() if '"topic_stuck"' in line]
    assert (said[0]["outbox_row"], said[0]["partition"], said[0]["key"]) == (ids[1], PARTITION, "k")
    emit(made, (GOOD, b"3"))
    until(lambda: values(made, GOOD)[-1] == b"3", "they still go on", planner.said, SECONDS)
    second.start()
    made.wait_published()
    # The end of the last transaction reaches the broker that has just come back a little later.
    until(lambda: len(values(made, BAD)) == 3, "the topic's events follow", lambda: f"{values(made, BAD)}", SECONDS)
    assert values(made, BAD) == [b"zeroth", b"first", b"second"]
    assert values(made, GOOD) == [b"0", b"1", b"2", b"3"]
    assert made.events(Topic.DEAD_LETTERS) == []
    until(lambda: ready(made, planner)["events"] == "ok", "it is ready again", planner.said, SECONDS)
