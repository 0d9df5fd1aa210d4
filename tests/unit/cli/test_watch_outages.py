"""Watching outlasts that Kafka has just restarted, and that Postgres is away for a while."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy.exc import OperationalError
from tenacity import stop_after_attempt, wait_none

from retrofill_core.settings import Settings
from retrofill_tools.cli import watching
from retrofill_tools.client import kafka


class Consumer:
    """Knows no leader for the first ``denials`` questions."""

    def __init__(self, denials: int) -> None:
        self.denials = denials
        self.assigned: list[Any] = []

    def assign(self, places: list[Any]) -> None:
        self.assigned = places


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(consumer: Consumer, places: list[Any], seconds: float) -> list[Any]:
        if consumer.denials:
            consumer.denials -= 1
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return places

    monkeypatch.setattr(kafka, "homes_of", lambda settings, consumer, topic, key, seconds: [topic])
    monkeypatch.setattr(kafka, "ends_of", ends)
    monkeypatch.setattr(watching._listen.retry, "wait", wait_none())


def test_it_asks_again_until_the_broker_knows_its_leaders() -> None:
    consumer = Consumer(denials=3)
    watching._listen(consumer, Settings(), "b")  # type: ignore[arg-type]
    assert len(consumer.assigned) == 2


def test_it_gives_up_in_the_end_with_the_brokers_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching._listen.retry, "stop", stop_after_attempt(2))
    with pytest.raises(KafkaException):
        watching._listen(Consumer(denials=3), Settings(), "b")  # type: ignore[arg-type]


def test_progress_is_read_again_until_postgres_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    away = [OperationalError("SELECT", {}, OSError("away")) for _ in range(3)]

    def snapshot(engine: object) -> object:
        raise away.pop() if away else KeyError("it is back")

    monkeypatch.setattr(watching, "snapshot", snapshot)
    monkeypatch.setattr(watching.read_progress.retry, "wait", wait_none())
    with pytest.raises(KeyError, match="it is back"):
        watching.read_progress(None, "b")  # type: ignore[arg-type]
