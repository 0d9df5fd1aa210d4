"""A real relay on the in-memory Kafka, while one topic refuses or cannot store events: those of other
topics go on, the event that waits is named, and the topic's events follow, once each and in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError

from retrofill_core.bus.relay import relay
from retrofill_core.bus.relay.relay import Relay
from retrofill_core.bus.relay.sending import TRIAL_SECONDS
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_core.settings import Settings
from retrofill_core.store.tables import SERVICE_TABLES
from tests.simulation import primitives
from tests.simulation.bus.broker import Broker
from tests.simulation.bus.connections import Connections
from tests.simulation.bus.groups import Group
from tests.simulation.memory.engine import Database, MemoryEngine
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.shims import exchanged

OWN = SERVICE_TABLES[PLANNER.package]
GOOD, BAD = str(Topic.BACKFILL_EVENTS), str(Topic.PIPELINE_EVENTS)
CURSORS = PLANNER.cursor_topic("")
SETTINGS = Settings(kafka_bootstrap_servers="simulated", postgres_dsn="dbname=simulated", topic_prefix="")
SECONDS = 120.0


class Bench:
    """The planner's relay, with rows of two topics in its outbox."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1, max_steps=200_000)
        primitives.running(self.scheduler)
        self.database = Database(self.scheduler)
        self.broker = Broker(self.scheduler)
        for topic in (GOOD, BAD, str(Topic.DEAD_LETTERS), CURSORS):
            self.broker.create(topic, 1)
        self.group = Group([CURSORS], 1, random.Random(1))
        self.broker.groups[PLANNER.relay_id("")] = self.group
        self._commit(OWN.relay.name, {})
        self.relay: Relay | None = None
        self.process: Process | None = None

    def start(self, name: str = "A") -> None:
        process = self.scheduler.process(name)
        process.connections = Connections(self.scheduler, self.broker, process)  # type: ignore[attr-defined]
        engine: Any = MemoryEngine(self.database, name)

        def start() -> None:
            self.relay = Relay(SETTINGS, PLANNER, name, engine, 1)
            self.relay.start()

        self.process = process
        self.scheduler.spawn(process, "start", start)

    def replace(self) -> None:
        """Kill the relay, and start another."""
        assert self.process is not None
        for member in list(self.group.members):
            self.group.leave(member)
        self.scheduler.kill(self.process)
        self.start("B")

    def emit(self, *rows: tuple[str, bytes]) -> None:
        for topic, value in rows:
            headers = [["ce_type", "Told"]]
            self._commit(OWN.outbox.name, {"topic": topic, "key": b"k", "value": value, "headers": headers})

    def _commit(self, table: str, values: dict[str, Any]) -> None:
        tx = self.database.begin("service")
        self.database.tables[table].insert(tx, values, skip=lambda _: False)
        self.database.commit(tx)

    def until(self, done: Callable[[], bool], seconds: float = SECONDS) -> None:
        end = self.scheduler.now + seconds
        self.scheduler.at(end, lambda: None)
        self.scheduler.run(lambda: done() or self.scheduler.now >= end)
        assert done(), f"not within {seconds:.0f} s: {self.problem()}"

    def sleep(self, seconds: float) -> None:
        end = self.scheduler.now + seconds
        self.until(lambda: self.scheduler.now >= end, seconds)

    def problem(self) -> str:
        return (self.relay and self.relay.problem()) or "ok"

    def values(self, topic: str) -> list[bytes | None]:
        return [entry.value for _, _, entry in self.broker.read(topic)]

    def published(self) -> bool:
        return not self.database.rows(OWN.outbox.name) and self.broker.settled()

    def rows_of(self, topic: str) -> list[bytes]:
        return [row["value"] for row in self.database.rows(OWN.outbox.name) if row["topic"] == topic]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with exchanged():
        made = Bench()
        try:
            yield made
        finally:
            made.scheduler.close()
            primitives.running(None)


def emit_both(bench: Bench) -> None:
    bench.emit((GOOD, b"1"), (BAD, b"first"), (GOOD, b"2"), (BAD, b"second"))


def others_go_on(bench: Bench) -> None:
    bench.until(lambda: bench.values(GOOD) == [b"1", b"2"])
    assert bench.rows_of(BAD) == [b"first", b"second"]
    # Nothing of the other topic waits for the held one's next trial either.
    bench.emit((GOOD, b"3"))
    bench.until(lambda: bench.values(GOOD) == [b"1", b"2", b"3"])
    bench.emit((BAD, b"third"))


def all_is_published(bench: Bench) -> None:
    bench.until(bench.published)
    assert bench.values(GOOD) == [b"1", b"2", b"3"]
    assert bench.values(BAD) == [b"first", b"second", b"third"]
    assert bench.values(str(Topic.DEAD_LETTERS)) == []
    bench.until(lambda: bench.problem() == "ok")


def test_a_missing_right_holds_only_its_topic(bench: Bench) -> None:
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    bench.broker.refuses = lambda topic, value: denied if topic == BAD else None
    emit_both(bench)
    bench.start()
    others_go_on(bench)
    assert f"topic {BAD} rejects events: TOPIC_AUTHORIZATION_FAILED" in bench.problem()
    bench.broker.refuses = lambda topic, value: None
    all_is_published(bench)


def test_a_topic_that_cannot_store_holds_only_its_events(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = mock.Mock()
    monkeypatch.setattr(relay, "log", log)
    bench.broker.stuck = {BAD}
    emit_both(bench)
    bench.start()
    others_go_on(bench)
    row = {"topic": BAD, "partition": 0, "outbox_row": 2, "type": "Told", "key": "k"}
    log.error.assert_called_once_with("topic_stuck", **row, what_to_do=mock.ANY)
    assert f"partition 0 of {BAD} has not stored outbox row 2" in bench.problem()
    bench.broker.stuck = set()
    all_is_published(bench)


def test_a_long_outage_of_one_topic_delays_the_others_by_a_trial_at_most(bench: Bench) -> None:
    bench.broker.stuck = {BAD}
    emit_both(bench)
    bench.start()
    others_go_on(bench)
    for n in range(50):
        value = f"later {n}".encode()
        bench.emit((GOOD, value))
        bench.until(lambda value=value: bench.values(GOOD)[-1] == value, 2 * TRIAL_SECONDS + 1)  # type: ignore[misc]
        bench.sleep(7)
    assert bench.values(BAD) == []
    bench.broker.stuck = set()
    bench.until(bench.published)
    assert bench.values(BAD) == [b"first", b"second", b"third"]


def test_a_transaction_whose_end_cannot_be_stored_stops_only_its_topic(bench: Bench) -> None:
    """The topic fails after it has stored a batch: the coordinator still has to write its end there."""
    bench.broker.on_append.append(lambda topic, *_: bench.broker.stuck.add(BAD) if topic == BAD else None)
    bench.emit((BAD, b"zeroth"))
    bench.start()
    bench.until(lambda: not bench.rows_of(BAD))
    emit_both(bench)
    others_go_on(bench)
    assert f"partition 0 of {BAD}" in bench.problem()
    bench.broker.on_append.clear()
    bench.broker.stuck = set()
    bench.until(bench.published)
    assert bench.values(BAD) == [b"zeroth", b"first", b"second", b"third"]


def test_a_successor_goes_on_while_a_topic_cannot_store(bench: Bench) -> None:
    bench.broker.stuck = {BAD}
    emit_both(bench)
    bench.start()
    others_go_on(bench)
    bench.replace()
    bench.emit((GOOD, b"4"))
    bench.until(lambda: bench.values(GOOD) == [b"1", b"2", b"3", b"4"])
    bench.broker.stuck = set()
    bench.until(bench.published)
    assert bench.values(BAD) == [b"first", b"second", b"third"]


def test_where_nothing_stores_it_waits_and_says_since_when(bench: Bench) -> None:
    bench.broker.stuck = {GOOD, BAD, CURSORS}
    emit_both(bench)
    bench.start()
    bench.until(lambda: bench.problem() != "ok")
    assert bench.problem().startswith("nothing published since 20")
    assert f"partition 0 of {CURSORS} stores nothing" in bench.problem()
    bench.broker.stuck = set()
    bench.until(bench.published)
    assert (bench.values(GOOD), bench.values(BAD)) == ([b"1", b"2"], [b"first", b"second"])
    bench.until(lambda: bench.problem() == "ok")
