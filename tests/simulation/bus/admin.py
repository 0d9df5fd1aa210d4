"""A fake ``confluent_kafka.admin.AdminClient``."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from tests.simulation.bus.connections import Connections


class FakeAdmin:
    def __init__(self, connections: Connections) -> None:
        self._c = connections
        self._broker = connections.broker

    def describe_topics(self, names: Any, request_timeout: float) -> dict[str, Future[Any]]:
        """Topic ids and partitions."""
        return {name: self._answer(partial(self._describe, name)) for name in names.topic_names}

    def _describe(self, name: str) -> Any:
        return SimpleNamespace(topic_id=self._broker.ids[name], partitions=self._broker.topics[name])

    def list_offsets(
        self, asked: dict[TopicPartition, Any], isolation_level: Any, request_timeout: float
    ) -> dict[TopicPartition, Future[Any]]:
        """End or beginning offsets."""
        return {p: self._answer(partial(self._offset, p, spec)) for p, spec in asked.items()}

    def _offset(self, p: TopicPartition, spec: Any) -> Any:
        log = self._broker.topics[p.topic][p.partition]
        return SimpleNamespace(offset=log.high_watermark if "Latest" in type(spec).__name__ else 0)

    def _answer(self, ask: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            self._c.step("admin")
            future.set_result(ask())
        except KafkaException as e:
            future.set_exception(e)
        return future
