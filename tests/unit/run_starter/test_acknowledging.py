"""A driver is told which of its reports are durable, whoever waits for whom."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from run_starter.executors.answers import Acknowledging

SECONDS = 20.0


class Driver:
    """Hears what its host sends, one message at a time, unless it is ``stopped``."""

    def __init__(self) -> None:
        self._heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.listens = threading.Event()
        self.listens.set()
        self.is_sent = threading.Event()
        # Other tests of the process may have left theirs.
        self._others = set(threading.enumerate())
        self.host = Acknowledging(self._send)

    def _send(self, message: dict[str, Any]) -> None:
        self.is_sent.set()
        assert self.listens.wait(SECONDS)
        self._heard.put(message)

    def hears(self) -> dict[str, Any]:
        return self._heard.get(timeout=SECONDS)

    def has_heard_all(self) -> bool:
        """Once nothing more can be sent."""
        for thread in {*threading.enumerate()} - self._others:
            if thread.name == "acknowledging":
                thread.join(SECONDS)
                assert not thread.is_alive()
        return self._heard.empty()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.host.stop()
    made.listens.set()
    made.has_heard_all()


def test_each_report_is_acknowledged_once_it_is_durable(driver: Driver) -> None:
    first, second = driver.host.on_delivery(1), driver.host.on_delivery(2)
    first(None)
    assert driver.hears() == {"acknowledged": 1}
    second(None)
    assert driver.hears() == {"acknowledged": 2}


def test_a_driver_that_reads_nothing_holds_nobody_up(driver: Driver) -> None:
    """Deliveries come from the thread of all reports of a host, which must go on."""
    driver.listens.clear()
    delivered = [driver.host.on_delivery(number) for number in (1, 2, 3, 4)]
    delivered[0](None)
    assert driver.is_sent.wait(SECONDS)
    for each in delivered[1:]:
        each(None)
    driver.listens.set()
    # One message for all that became durable meanwhile.
    assert [driver.hears(), driver.hears()] == [{"acknowledged": 1}, {"acknowledged": 4}]


def test_nothing_is_acknowledged_after_a_gap(driver: Driver) -> None:
    first, second, third = (driver.host.on_delivery(number) for number in (1, 2, 3))
    first(None)
    assert driver.hears() == {"acknowledged": 1}
    second("the topic is gone")
    third(None)
    assert driver.hears() == {"undelivered": "the topic is gone"}
    assert driver.has_heard_all()


def test_the_first_reason_is_the_one_that_is_said(driver: Driver) -> None:
    driver.listens.clear()
    driver.host.on_delivery(1)(None)
    assert driver.is_sent.wait(SECONDS)
    driver.host.undelivered("it is no report")
    driver.host.on_delivery(2)("the run-starter stopped")
    driver.listens.set()
    assert [driver.hears(), driver.hears()] == [{"acknowledged": 1}, {"undelivered": "it is no report"}]


def test_a_driver_that_has_left_is_told_nothing(driver: Driver) -> None:
    delivered = driver.host.on_delivery(1)
    driver.host.stop()
    delivered(None)
    assert driver.has_heard_all()
