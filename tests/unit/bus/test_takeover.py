"""Takeovers while Kafka does not answer. Kafka's answers are tested against a real broker."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

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
    asked = []

    class Answering:
        def list_offsets(self, partitions: Any, **_: Any) -> dict[Any, Any]:
            asked.extend(partitions)
            return {}

    ids.admin = Answering()  # type: ignore[assignment]  # the client is replaced after a failure
    assert ids.ends.high_watermarks({"run-reports": [1]}) == {}
    assert [each.partition for each in asked] == [1]


def test_a_client_that_is_refused_is_replaced() -> None:
    """A client could otherwise keep using metadata from before a broker restart for minutes."""
    ids = TopicIds(Settings(kafka_bootstrap_servers="127.0.0.1:9"), RUN_STARTER, "test")
    refusal: Future[Any] = Future()
    refusal.set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))

    class Stale:
        def list_offsets(self, partitions: Any, **_: Any) -> dict[Any, Future[Any]]:
            return dict.fromkeys(partitions, refusal)

    ids.admin = stale = Stale()  # type: ignore[assignment]
    with pytest.raises(KafkaException, match="FENCED_LEADER_EPOCH"):
        ids.ends.high_watermarks({"run-reports": [1]})
    assert ids.admin is not stale
