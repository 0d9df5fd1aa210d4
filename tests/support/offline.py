"""Parts of a service that need no servers, for tests of what works with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

from sqlalchemy import Engine

from retrofill_core.bus.envelope import Record
from retrofill_core.bus.handler import Handler
from retrofill_core.bus.poller import Poller, Rewind
from retrofill_core.bus.takeover import TopicIds
from retrofill_core.bus.worker.context import WorkerContext
from retrofill_core.contract.topics import Service
from retrofill_core.settings import Settings
from retrofill_core.store.engine import make_engine

T = TypeVar("T")
PARTITIONS = 4
# For what is given an engine and does not connect.
NO_DATABASE = make_engine("postgresql://nowhere/x", "test")


def acting_as(kind: type[T], fake: object) -> T:
    """A fake of a class of SQLAlchemy's, which cannot be made without a database; ``None`` where nothing uses it."""
    return cast(T, fake)


class OfflinePoller(Poller):
    """Polls nothing, and remembers what the worker asks of it."""

    def __init__(self) -> None:
        # Without Poller's own, which makes a consumer.
        self.given_back: list[Record] = []
        self.rewinds: list[Rewind] = []
        self.released: list[tuple[int, tuple[str, ...]]] = []

    def rewind(self, command: Rewind) -> None:
        self.rewinds.append(command)

    def release(self, partition: int, topics: Sequence[str]) -> None:
        self.released.append((partition, tuple(topics)))

    def handled(self, items: Iterable[Record]) -> None:
        self.given_back += items

    def commit(self, partition: int, offsets: dict[str, int], *, wait: bool) -> None:
        pass


class OfflineIds(TopicIds):
    """Knows an id of any topic."""

    def __init__(self) -> None:
        # Without that of TopicIds, which makes a client.
        pass

    def of(self, topic: str) -> str:
        return f"id of {topic}"


def offline(
    service: Service,
    handler: Handler,
    *,
    poller: Poller | None = None,
    engine: Engine = NO_DATABASE,
    kind: type[WorkerContext] = WorkerContext,
) -> WorkerContext:
    """A worker's context with few partitions, and batches of up to 10 messages."""
    settings = Settings(batch_messages=10)
    return kind(settings, service, "i", engine, poller or OfflinePoller(), handler, OfflineIds(), PARTITIONS)
