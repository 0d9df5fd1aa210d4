"""Leases of drivers that beat while Kafka is silent are renewed in Postgres, and no others."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest

from retrofill_core.store import attempts
from run_starter.executors import OnDelivery
from run_starter.host.report_wire import Heartbeats


def nobody(why: str | None) -> None:
    """Waits for its delivery."""


class Postgres:
    """Renews the leases of attempts that are ``live``. Counts the statements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live = {1, 2}
        self.asked: list[set[int]] = []
        self.away = False
        monkeypatch.setattr(attempts, "renew", self._renew)

    def begin(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _renew(self, conn: None, ids: Collection[int], own: Collection[int]) -> list[int]:
        assert set(own) == {7, 8}
        self.asked.append(set(ids))
        if self.away:
            raise OSError("Postgres is away, too")
        return sorted(self.live & set(ids))


class World:
    """A host with two drivers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heartbeats, self.postgres = Heartbeats(), Postgres(monkeypatch)
        # The heartbeats that drivers were told to have renewed their leases, by attempt.
        self.told: list[tuple[int, int]] = []
        self.delivered: dict[tuple[int, int], OnDelivery] = {}

    def beat(self, attempt: int, number: int, on_delivery: OnDelivery = nobody) -> None:
        tell = partial(self.told.append, (attempt, number))
        self.delivered[attempt, number] = self.heartbeats.sent(attempt, on_delivery, tell)

    def renew(self) -> None:
        postgres: Any = self.postgres
        self.heartbeats.renew(postgres, [7, 8])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_postgres_is_not_asked_while_kafka_answers(world: World) -> None:
    for number in range(5):
        world.beat(1, number)
        world.renew()
        world.delivered[1, number](None)
    world.renew()
    assert world.postgres.asked == [] == world.told


def test_drivers_that_beat_twice_without_an_answer_are_renewed_in_one_statement_and_the_others_are_not(
    world: World,
) -> None:
    for attempt, beats in ((1, 3), (2, 2), (3, 2), (4, 1)):
        for number in range(beats):
            world.beat(attempt, number)
    world.renew()
    # The third is over.
    assert (world.postgres.asked, sorted(world.told)) == ([{1, 2, 3}], [(1, 2), (2, 1)])
    # Only what beats again is renewed again: a driver that is stopped is not.
    world.beat(2, 2)
    world.renew()
    assert (world.postgres.asked[1:], world.told[2:]) == ([{2}], [(2, 2)])


def test_kafka_is_back_once_it_has_all_heartbeats(world: World) -> None:
    world.beat(1, 0)
    world.beat(1, 1)
    world.delivered[1, 0](None)
    world.beat(1, 2)
    world.delivered[1, 1](None)
    world.delivered[1, 2](None)
    world.renew()
    world.beat(1, 3)
    world.renew()
    assert world.postgres.asked == []


def test_a_renewal_that_fails_is_tried_again_with_the_next_heartbeat(world: World) -> None:
    world.beat(1, 0)
    world.beat(1, 1)
    world.postgres.away = True
    with pytest.raises(OSError, match="away"):
        world.renew()
    world.renew()
    world.postgres.away = False
    world.beat(1, 2)
    world.renew()
    assert (world.postgres.asked, world.told) == ([{1}, {1}], [(1, 2)])


def test_what_waits_for_a_heartbeat_hears_what_became_of_it(world: World) -> None:
    heard: list[str | None] = []
    world.beat(1, 0, heard.append)
    world.delivered[1, 0]("the topic is gone")
    assert heard == ["the topic is gone"]
