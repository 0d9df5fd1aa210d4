"""The simulated bus behaves like the real Kafka: the same scripts run on both, and what readers see
is compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewTopic
from tests.simulation.bus.broker import Broker
from tests.simulation.bus.connections import Connections
from tests.simulation.bus.consumer import FakeConsumer
from tests.simulation.bus.producer import FakeProducer
from tests.simulation.scheduler import Scheduler
from tests.support.installation import Installation
from tests.support.servers import Servers

from retrofill_core.bus.clients import admin, producer, reader
from retrofill_core.bus.relay.cursor import CURSOR_KEY, TAKEN_KEY, Marks, marks_before

PARTITIONS = 3
END = KafkaError._PARTITION_EOF


class Clients:
    """Makes clients of one of the two buses. Topic ``t`` has three partitions."""

    topic: str

    def producer(self, transactional_id: str | None = None) -> Any:
        """A producer."""

    def reader(self, isolation: str) -> Any:
        """A consumer with manual assignment."""


class RealClients(Clients):
    """Clients of the real broker."""

    def __init__(self, installation: Installation) -> None:
        self._settings = installation.settings
        self.topic = f"{installation.settings.topic_prefix}{uuid.uuid4().hex[:8]}"
        client = admin(self._settings, "test")
        for future in client.create_topics([NewTopic(self.topic, PARTITIONS, 1)]).values():
            future.result(20)

    def producer(self, transactional_id: str | None = None) -> Any:
        more = {} if transactional_id is None else {"transactional.id": f"{self.topic}-{transactional_id}"}
        return producer(self._settings, "test", **more)

    def reader(self, isolation: str) -> Any:
        return reader(self._settings, f"test-{uuid.uuid4().hex[:6]}", **{"isolation.level": isolation})


class FakeClients(Clients):
    """Clients of the in-memory broker."""

    def __init__(self, scheduler: Scheduler) -> None:
        broker = Broker(scheduler)
        self.topic = "t"
        broker.create(self.topic, PARTITIONS)
        self._connections = Connections(scheduler, broker, scheduler.process("test"))
        self.process = self._connections.process

    def producer(self, transactional_id: str | None = None) -> Any:
        return FakeProducer(self._connections, {"transactional.id": transactional_id})

    def reader(self, isolation: str) -> Any:
        return FakeConsumer(self._connections, {"group.id": "test", "isolation.level": isolation})


def seen(clients: Clients, isolation: str, start: int = 0, partition: int = 0) -> list[Any]:
    """What a reader sees from ``start`` on: offsets with values and headers, and the offset of the
    end.
    """
    consumer = clients.reader(isolation)
    consumer.assign([TopicPartition(clients.topic, partition, start)])
    found: list[Any] = []
    for _ in range(100):
        message = consumer.poll(10)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == END
            consumer.close()
            return [*found, ("end", message.offset())]
        found.append((message.offset(), message.value(), message.headers() or []))
    raise AssertionError("no end")


def marks(clients: Clients, isolation: str, partition: int = 0) -> tuple[int, int]:
    """The low and high watermarks."""
    consumer = clients.reader(isolation)
    found = consumer.get_watermark_offsets(TopicPartition(clients.topic, partition), timeout=10)
    consumer.close()
    return found[0], found[1]


def settle(clients: Clients) -> None:
    """Wait until every partition has the transaction's end marker, which arrives a little later."""
    while any(marks(clients, "read_committed", p) != marks(clients, "read_uncommitted", p) for p in range(PARTITIONS)):
        pass


def both_isolations(clients: Clients, start: int = 0) -> list[Any]:
    """What both isolation levels read, with their watermarks."""
    isolations = ("read_committed", "read_uncommitted")
    return [[seen(clients, isolation, start), marks(clients, isolation)] for isolation in isolations]


def send(client: Any, clients: Clients, *values: bytes, partition: int = 0) -> None:
    """Publish and wait for the acknowledgment."""
    for value in values:
        client.produce(clients.topic, key=b"k", value=value, partition=partition, headers=[("h", b"\xff"), ("n", None)])
    assert client.flush(10) == 0


def refused(call: Callable[[], Any]) -> str:
    """The name of the error that the call raises."""
    try:
        call()
    except KafkaException as e:
        return str(e.args[0].name())
    return "no error"


def an_open_transaction(clients: Clients) -> list[Any]:
    """An open transaction hides everything after it from read_committed readers."""
    plain, transactional = clients.producer(), clients.producer("x")
    send(plain, clients, b"0")
    transactional.init_transactions(10)
    transactional.begin_transaction()
    send(transactional, clients, b"1")
    send(plain, clients, b"2")
    before = both_isolations(clients)
    transactional.commit_transaction(10)
    settle(clients)
    return [before, both_isolations(clients), both_isolations(clients, 2)]


def an_aborted_transaction(clients: Clients) -> list[Any]:
    """read_committed readers never see it; its marker occupies an offset."""
    transactional = clients.producer("x")
    transactional.init_transactions(10)
    transactional.begin_transaction()
    send(transactional, clients, b"0", b"1")
    transactional.abort_transaction(10)
    settle(clients)
    first = both_isolations(clients)
    transactional.begin_transaction()
    send(transactional, clients, b"2")
    transactional.commit_transaction(10)
    settle(clients)
    return [first, both_isolations(clients)]


def a_fenced_producer(clients: Clients) -> list[Any]:
    """Its successor aborts the open transaction, and the fenced producer can no longer commit."""
    first, second = clients.producer("x"), clients.producer("x")
    first.init_transactions(10)
    first.begin_transaction()
    send(first, clients, b"0")
    second.init_transactions(10)
    fenced = refused(lambda: first.commit_transaction(10))
    second.begin_transaction()
    send(second, clients, b"1")
    second.commit_transaction(10)
    settle(clients)
    return [fenced, both_isolations(clients)]


def a_transaction_over_partitions(clients: Clients) -> list[Any]:
    """All or nothing, with a marker in each partition that was written to."""
    transactional = clients.producer("x")
    transactional.init_transactions(10)
    transactional.begin_transaction()
    send(transactional, clients, b"0", partition=0)
    send(transactional, clients, b"2", partition=2)
    before = [seen(clients, "read_committed", 0, p) for p in range(PARTITIONS)]
    transactional.commit_transaction(10)
    settle(clients)
    return [before, [seen(clients, "read_committed", 0, p) for p in range(PARTITIONS)]]


def the_relays_cursor(clients: Clients) -> list[Any]:
    """The last committed cursor and the greatest epoch before the relay's own mark, from any start offset.
    Nothing after the mark is read.
    """
    transactional = clients.producer("x")
    transactional.init_transactions(10)
    for key, value in (
        (CURSOR_KEY, b"1"),
        (TAKEN_KEY, b"7"),
        (CURSOR_KEY, b"2"),
        (CURSOR_KEY, None),
        (TAKEN_KEY, b"8"),
        (CURSOR_KEY, b"4"),
    ):
        transactional.begin_transaction()
        transactional.produce(clients.topic, key=key, value=value or b"3", partition=0)
        assert transactional.flush(10) == 0
        if value is None:
            transactional.abort_transaction(10)
        else:
            transactional.commit_transaction(10)
        settle(clients)
    read = [
        marks_before(clients.reader("read_committed"), TopicPartition(clients.topic, 0, start), mark)
        for start, mark in ((0, b"7"), (0, b"8"), (1, b"8"), (4, b"8"), (8, b"8"))
    ]
    assert read == [Marks(1, 0), Marks(2, 7), Marks(2, 7), Marks(2, 0), Marks(0, 0)]
    return read


def where_keys_land(clients: Clients) -> list[Any]:
    """Equal keys land on equal partitions."""
    plain = clients.producer()
    for n in range(20):
        plain.produce(clients.topic, key=f"key-{n}".encode(), value=str(n).encode())
        assert plain.flush(10) == 0
    return [seen(clients, "read_committed", 0, p) for p in range(PARTITIONS)]


@pytest.fixture(scope="module")
def installation(servers: Servers) -> Iterator[Installation]:
    """Shared by all of these tests; each uses its own topic."""
    made = servers.installation()
    yield made
    made.close()


SCRIPTS = [
    an_open_transaction,
    an_aborted_transaction,
    a_fenced_producer,
    a_transaction_over_partitions,
    the_relays_cursor,
    where_keys_land,
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_both_buses_say_the_same(installation: Installation, script: Callable[[Clients], list[Any]]) -> None:
    real = script(RealClients(installation))
    scheduler = Scheduler(0)
    clients = FakeClients(scheduler)
    said: list[Any] = []
    task = scheduler.spawn(clients.process, "script", lambda: said.append(script(clients)))
    scheduler.run(lambda: task.ended)
    assert said == [real]
