"""What the clients of one process share: whether Kafka can be reached, and who polls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from tests.simulation.bus.broker import Broker
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.bus.consumer import FakeConsumer


def refused(code: int) -> KafkaException:
    """The client's error for ``code``."""
    return KafkaException(KafkaError(code))


class Connections:
    """Makes the clients of one process."""

    def __init__(self, scheduler: Scheduler, broker: Broker, process: Process) -> None:
        self.scheduler = scheduler
        self.broker = broker
        self.process = process
        self.consumers: list[FakeConsumer] = []
        process.on_death.append(self._forget)

    def asked(self) -> None:
        """The process has something for those of its threads that poll."""
        for consumer in self.consumers:
            self.scheduler.wake(consumer)

    def add(self, consumer: FakeConsumer) -> None:
        """A consumer that polls."""
        self.consumers.append(consumer)
        self.broker.readers.append(consumer)

    def remove(self, consumer: FakeConsumer) -> None:
        """It is closed."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self.broker.readers.remove(consumer)

    def _forget(self) -> None:
        for consumer in list(self.consumers):
            self.remove(consumer)

    @property
    def cut(self) -> bool:
        """Whether Kafka cannot be reached."""
        return self.process.cut or self.broker.down

    def step(self, what: str) -> None:
        """Anything may happen before a call of the broker. Raises where it cannot be reached."""
        self.scheduler.step(what)
        self.broker.expire()
        if self.cut:
            self.scheduler.wait(object(), 0.2)
            if self.cut:
                raise refused(KafkaError._TIMED_OUT)
