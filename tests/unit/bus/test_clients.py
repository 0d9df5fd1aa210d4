"""The configuration of Kafka's clients: our properties, those of the setting, and what must be ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from retrofill_core.bus import clients, poller
from retrofill_core.bus.inbox import Inbox
from retrofill_core.bus.poller import Poller
from retrofill_core.bus.relay.cursor import Membership
from retrofill_core.contract.topics import PLANNER
from retrofill_core.setting_types import KAFKA_OWN
from retrofill_core.settings import Settings

GIVEN = {
    "compression.type": "zstd",
    "linger.ms": "5",
    "retry.backoff.ms": "100",
    "fetch.wait.max.ms": "7",
    "max.poll.interval.ms": "600000",
    "reconnect.backoff.max.ms": "9000",
}
MAKERS: dict[str, Callable[[Settings], object]] = {
    "producer": lambda s: clients.producer(
        s, "x", **{"linger.ms": 1, "transactional.id": "t", "message.timeout.ms": 9}
    ),
    "reader": lambda s: clients.reader(s, "x", **{"fetch.wait.max.ms": 5}),
    "poller": lambda s: Poller(s, PLANNER, "x", Inbox()),
    "membership": lambda s: Membership(s, PLANNER, "x", threading.Event()),
}


def made(kind: str, settings: Settings) -> dict[str, Any]:
    """The configuration of one of our clients."""
    client = mock.Mock()
    with (
        mock.patch.object(clients, "Producer", client),
        mock.patch.object(clients, "Consumer", client),
        mock.patch.object(poller, "Consumer", client),
    ):
        MAKERS[kind](settings)
    (config,) = client.call_args.args
    return dict(config)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_setting_takes_precedence_and_what_it_may_not_have_is_ours(kind: str) -> None:
    ours = made(kind, Settings(kafka_bootstrap_servers="k:1"))
    given = made(kind, Settings.model_validate({"kafka_bootstrap_servers": "k:1", "kafka_config": GIVEN}))
    assert given == {**ours, **GIVEN}
    assert set(ours) & KAFKA_OWN


def test_what_the_guarantees_need_is_ours() -> None:
    settings = Settings(kafka_bootstrap_servers="k:1")
    assert {
        *("partitioner", "enable.idempotence", "acks", "transactional.id", "message.timeout.ms", "message.max.bytes"),
        *("group.id", "group.protocol", "group.remote.assignor", "isolation.level", "auto.offset.reset"),
        *("enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof"),
    } == {key for kind in ("producer", "poller") for key in made(kind, settings)} & KAFKA_OWN
