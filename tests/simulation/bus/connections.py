"""State shared by the clients of one process: Kafka's reachability and the polling consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from tests.simulation.bus.broker import Broker
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.bus.consumer import FakeConsumer


def refused(code: int) -> KafkaException:
    """The client's exception for error ``code``."""
    return KafkaException(KafkaError(code))


class Connections:
    """Creates the clients of one process."""

    def __init__(self, scheduler: Scheduler, broker: Broker, process: Process) -> None:
        self.scheduler = scheduler
        self.broker = broker
        self.process = process
        self.consumers: list[FakeConsumer] = []
        process.on_death.append(self._forget)

    def asked(self) -> None:
        """Wake the threads that poll: there is a call for them."""
        for consumer in self.consumers:
            self.scheduler.wake(consumer)

    def add(self, consumer: FakeConsumer) -> None:
        self.consumers.append(consumer)
        self.broker.readers.append(consumer)

    def remove(self, consumer: FakeConsumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self.broker.readers.remove(consumer)

    def _forget(self) -> None:
        for consumer in list(self.consumers):
            self.remove(consumer)

    @property
    def cut(self) -> bool:
        """Whether Kafka is unreachable."""
        return self.process.cut or self.broker.down

    def step(self, what: str) -> None:
        """A scheduler step before a broker call. Raises if Kafka is unreachable."""
        self.scheduler.step(what)
        self.broker.expire()
        if self.cut:
            self.scheduler.wait(object(), 0.2)
            if self.cut:
                raise refused(KafkaError._TIMED_OUT)
