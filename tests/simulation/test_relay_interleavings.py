"""Interleavings of two real relays: a crash at every step, or a pause that ends at each eighth of the other's.

``tests/property/test_outbox_relay_model.py`` explores a model of the protocol. Here, two real
relays run on the in-memory Kafka and Postgres. Tasks switch only where one waits, so a pair of
steps is one deterministic interleaving.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from retrofill_core.bus.relay import numbering
from retrofill_core.bus.relay.relay import Relay
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_core.settings import Settings
from retrofill_core.store.tables import SERVICE_TABLES
from tests.simulation import primitives
from tests.simulation.bus.broker import Broker
from tests.simulation.bus.connections import Connections
from tests.simulation.bus.groups import Group
from tests.simulation.memory.engine import IDLE_SECONDS, Database, MemoryEngine
from tests.simulation.mutations import bus as mutations
from tests.simulation.scheduler import Process, Scheduler, Stuck, Task
from tests.simulation.shims import exchanged

OWN = SERVICE_TABLES[PLANNER.package]
TOPIC = str(Topic.BACKFILL_EVENTS)
SETTINGS = Settings(kafka_bootstrap_servers="simulated", postgres_dsn="dbname=simulated", topic_prefix="")
REFUSED = b"1"
ROWS = 6
# A takeover and three batches take fewer steps. A fault beyond the last step never happens.
STEPS = 100
LATER = tuple(range(2, 60, 8))
AFTERWARDS = 12.0


class Prompt(Scheduler):
    """Switches tasks only where one waits or is frozen; due events run between any two steps."""

    def step(self, what: str) -> None:
        super().step(what)
        self._due_events()


class Bench:
    """Two relays of one service.

    The first crashes at its step ``fault_at``, or freezes until the other reaches its step
    ``wake_at``.
    """

    def __init__(self, fault_at: int, wake_at: int | None, refused: bytes | None) -> None:
        self.scheduler = Prompt(1, max_steps=20_000)
        self.scheduler.switch_chance = 0.0
        primitives.running(self.scheduler)
        self.database = Database(self.scheduler)
        self.broker = Broker(self.scheduler)
        self.broker.create(TOPIC, 1)
        self.broker.create(str(Topic.DEAD_LETTERS), 1)
        self.broker.create(PLANNER.cursor_topic(""), 1)
        if refused is not None:
            code = KafkaError.MSG_SIZE_TOO_LARGE
            self.broker.refuses = lambda topic, value: code if topic == TOPIC and value == refused else None
        self.group = Group([PLANNER.cursor_topic("")], 1, random.Random(1))
        self.broker.groups[PLANNER.relay_id("")] = self.group
        self.fault_at, self.wake_at = fault_at, wake_at
        self.steps = {"A": 0, "B": 0}
        self.faulty = False
        self.commit(OWN.relay.name, {})
        for n in range(ROWS - 1):
            self.commit_row(n)
        self.first = self.start("A")
        self.scheduler.on_step = self.on_step

    def commit(self, table: str, values: dict[str, Any]) -> None:
        tx = self.database.begin("service")
        self.database.tables[table].insert(tx, values, skip=lambda _: False)
        self.database.commit(tx)

    def commit_row(self, n: int) -> None:
        self.commit(OWN.outbox.name, {"topic": TOPIC, "key": b"k", "value": str(n).encode(), "headers": []})

    def start(self, name: str) -> Process:
        process = self.scheduler.process(name)
        process.connections = Connections(self.scheduler, self.broker, process)  # type: ignore[attr-defined]
        engine: Any = MemoryEngine(self.database, name)
        self.scheduler.spawn(process, "start", lambda: Relay(SETTINGS, PLANNER, name, engine, 1).start())
        return process

    def on_step(self, task: Task, what: str) -> None:
        if task.name != "relay" or what == "event":
            return
        name = task.process.name
        self.steps[name] += 1
        if name == "A" and self.steps["A"] == self.fault_at:
            self.fault()
        elif name == "A":
            # The first relay keeps its turn until it waits.
            self.scheduler.switch_chance = 0.0
        elif name == "B" and self.steps["B"] == self.wake_at:
            self.first.frozen = False
            self.scheduler.switch_chance = 1.0

    def fault(self) -> None:
        self.faulty = True
        # Meanwhile, a service commits another event and the coordinator expels the member.
        self.commit_row(ROWS - 1)
        for member in list(self.group.members):
            self.group.leave(member)
        self.start("B")
        if self.wake_at is None:
            self.scheduler.kill(self.first)
        else:
            self.first.frozen = True
            # Postgres ends a session that is idle in its transaction.
            for tx in [tx for tx in self.database.open if tx.who == "A"]:
                self.scheduler.at(self.scheduler.now + IDLE_SECONDS, lambda tx=tx: self.idle(tx))  # type: ignore[misc]

    def idle(self, tx: Any) -> None:
        if not tx.over and self.first.frozen:
            self.database.terminate(tx)

    def done(self) -> bool:
        return not self.database.rows(OWN.outbox.name) and self.broker.settled()

    def run(self) -> str | None:
        """Play the interleaving. Returns what a subscriber saw wrong, or ``None``."""
        try:
            self.scheduler.run(self.done)
            self.first.frozen = False
            end = self.scheduler.now + AFTERWARDS
            self.scheduler.at(end, lambda: None)
            self.scheduler.run(lambda: self.scheduler.now >= end)
            self.first.frozen = False
            self.scheduler.run(self.done)
        except Stuck:
            return "stuck"
        finally:
            self.scheduler.close()
            primitives.running(None)
        return self.complaint()

    def complaint(self) -> str | None:
        rows = ROWS if self.faulty else ROWS - 1
        aside = [entry.value for _, _, entry in self.broker.read(str(Topic.DEAD_LETTERS))]
        read = [entry.value for _, _, entry in self.broker.read(TOPIC)]
        refuses = self.broker.refuses(TOPIC, REFUSED) is not None
        if aside != ([REFUSED] if refuses else []):
            return f"set aside: {aside}"
        expected = [value for n in range(rows) if (value := str(n).encode()) not in aside]
        return None if read == expected else f"read: {read}"


@pytest.fixture(autouse=True)
def _two_rows_a_batch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(numbering, "BATCH_ROWS", 2)
    with exchanged():
        yield


def complaints(refused: bytes | None) -> Iterator[tuple[int, int | None, str]]:
    """All failures, each with its interleaving."""
    for fault_at in range(1, STEPS):
        for wake_at in (None, *LATER):
            bench = Bench(fault_at, wake_at, refused)
            if (complaint := bench.run()) is not None:
                yield fault_at, wake_at, complaint
            if not bench.faulty:
                return


@pytest.mark.long
@pytest.mark.parametrize("refused", [None, REFUSED], ids=["all are good", "one is refused"])
def test_every_event_is_published_once_and_in_order(refused: bytes | None) -> None:
    assert list(complaints(refused)) == []


@pytest.mark.parametrize(
    ("mutation", "refused"),
    [
        (mutations.batches_without_epoch, None),
        (mutations.unknown_batch_is_dropped, None),
        (mutations.unknown_batch_is_resent, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_in_the_relay_is_found(mutation: Any, refused: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch.setattr)
    assert next(complaints(refused), None) is not None
