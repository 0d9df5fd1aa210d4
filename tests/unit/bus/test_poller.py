"""The poller also limits the bytes buffered for a slow worker, by pausing the partitions they come
from.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from retrofill_core.bus.inbox import Inbox, Records
from retrofill_core.bus.poller import BUFFERED_BYTES, Poller
from retrofill_core.contract.topics import WATCHER, Topic
from retrofill_core.settings import Settings

TOPIC = str(Topic.DEADLINES)
LARGE = b"x" * 1_000_000


class Recording:
    """A fake consumer that records paused partitions."""

    def __init__(self) -> None:
        self.paused: set[int] = set()

    def pause(self, partitions: list[Any]) -> None:
        self.paused |= {p.partition for p in partitions}

    def resume(self, partitions: list[Any]) -> None:
        self.paused -= {p.partition for p in partitions}


def message(partition: int, offset: int, value: bytes) -> Any:
    fields = {
        "topic": Topic.DEADLINES,
        "partition": partition,
        "offset": offset,
        "key": b"k",
        "value": value,
        "headers": None,
    }
    return SimpleNamespace(
        error=lambda: None, timestamp=lambda: (1, 0), **{name: (lambda v=v: v) for name, v in fields.items()}
    )


def test_a_few_large_messages_pause_their_partition_and_many_small_ones_do_not() -> None:
    inbox = Inbox()
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:9", topic_prefix="")
    poller = Poller(settings, WATCHER, "test", inbox)
    poller._member.consumer = consumer = Recording()  # type: ignore[assignment]  # no broker answers here
    poller._assigned = {(TOPIC, p) for p in range(8)}
    most = BUFFERED_BYTES // 8 // len(LARGE)
    poller._hand_over([message(0, n, LARGE) for n in range(most + 1)] + [message(1, n, b"{}") for n in range(500)])
    poller._throttle()
    assert consumer.paused == {0}
    (items,) = [item for item in inbox.wait(0.0) if isinstance(item, Records)]
    large = [record for record in items.items if record.partition == 0]
    poller.handled(large[: most // 2])  # type: ignore[arg-type]  # contains no End items
    poller._throttle()
    assert consumer.paused == {0}
    poller.handled(large[most // 2 :])  # type: ignore[arg-type]
    poller._throttle()
    assert consumer.paused == set()
