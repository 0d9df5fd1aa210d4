"""A relay never sends again with a producer whose transaction was aborted.

librdkafka numbers the next messages of a partition like those that the abort discarded. A broker
that has those takes the next ones for repeats and acknowledges them without storing them.
"""

from __future__ import annotations

from typing import Any, cast
from unittest import mock

import pytest
from sqlalchemy import Engine

from retrofill_core.bus.relay import relay as module
from retrofill_core.bus.relay.numbering import Batch
from retrofill_core.bus.relay.relay import Relay
from retrofill_core.contract.topics import PLANNER
from retrofill_core.settings import Settings


def test_a_refused_batch_is_sent_again_by_another_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    with mock.patch.object(module, "Membership"):
        relay = Relay(Settings(topic_prefix="t."), PLANNER, "planner-1", cast("Engine", None), partitions=1)
    relay._numbering = mock.Mock()
    batch = Batch(1, [])
    takeovers, senders = [], []

    def take_over(self: Relay) -> tuple[Any, Batch]:
        takeovers.append(object())
        return takeovers[-1], batch

    def publish(self: Relay, client: Any, _: Batch) -> bool:
        senders.append(client)
        if len(senders) == 3:
            relay._stopping.set()
        return False

    monkeypatch.setattr(Relay, "_take_over", take_over)
    monkeypatch.setattr(Relay, "_publish", publish)
    relay.run()
    assert senders == takeovers
    assert len(senders) == 3
