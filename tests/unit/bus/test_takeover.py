"""Taking over while Kafka does not answer; what it answers is tested against a real one."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from retrofill.bus import takeover
from retrofill.bus.takeover import TopicIds
from retrofill.bus.topics import RUN_STARTER
from retrofill.settings import Settings


class Noting(AdminClient):
    """A client that notes when it is to ask anew who leads."""

    asked = 0

    def list_topics(self, *args: Any, **more: Any) -> Any:
        self.asked += 1
        return super().list_topics(*args, **more)


def test_a_client_that_gets_no_answer_asks_anew_who_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "REQUEST_SECONDS", 0.2)
    ids = TopicIds(Settings(kafka_bootstrap_servers="127.0.0.1:9"), RUN_STARTER, "test")
    ids.admin = Noting({"bootstrap.servers": "127.0.0.1:9", "log_level": 0})
    # What is told is why it was asked, not that nobody answered that either.
    with pytest.raises(KafkaException, match="waiting for controller"):
        ids.refresh()
    assert ids.admin.asked == 1
