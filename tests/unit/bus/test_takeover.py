"""Takeovers while Kafka does not answer. Kafka's answers are tested against a real broker."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from retrofill_core.bus import takeover
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.contract.topics import RUN_STARTER
from retrofill_core.settings import Settings


def test_a_client_that_gets_no_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "REQUEST_SECONDS", 0.2)
    ids = TopicIds(Settings(kafka_bootstrap_servers="127.0.0.1:9"), RUN_STARTER, "test")
    before = ids.admin
    with pytest.raises(KafkaException, match="waiting for controller"):
        ids.refresh()
    assert ids.admin is not before


def test_whoever_asks_for_ends_asks_the_client_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = TopicIds(Settings(kafka_bootstrap_servers="127.0.0.1:9"), RUN_STARTER, "test")
    # A client is replaced after a failure.
    ids.renew()
    asked: list[TopicPartition] = []

    def answer(partitions: Any, **_: Any) -> dict[Any, Any]:
        asked.extend(partitions)
        return {}

    monkeypatch.setattr(ids.admin, "list_offsets", answer)
    assert ids.ends.high_watermarks({"run-reports": [1]}) == {}
    assert [each.partition for each in asked] == [1]


def test_a_client_that_is_refused_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client could otherwise keep using metadata from before a broker restart for minutes."""
    ids = TopicIds(Settings(kafka_bootstrap_servers="127.0.0.1:9"), RUN_STARTER, "test")
    refusal: Future[Any] = Future()
    refusal.set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
    stale = ids.admin
    monkeypatch.setattr(stale, "list_offsets", lambda partitions, **_: dict.fromkeys(partitions, refusal))
    with pytest.raises(KafkaException, match="FENCED_LEADER_EPOCH"):
        ids.ends.high_watermarks({"run-reports": [1]})
    assert ids.admin is not stale
