"""Replaces ``time``, ``threading``, ``queue``, ``uuid`` and the Kafka clients in the services'
modules.

The modules themselves are the real ones; only these names are replaced during a simulation.
"""

from __future__ import annotations

import logging
import uuid as real_uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tenacity import Retrying

from retrofill_core.bus import transaction
from retrofill_core.bus.transaction import Transaction
from tests.simulation.bus.admin import FakeAdmin
from tests.simulation.bus.consumer import FakeConsumer
from tests.simulation.bus.producer import FakeProducer
from tests.simulation.interned import interned
from tests.simulation.primitives import (
    CallsQueue,
    Future,
    Queue,
    Threading,
    Time,
    connections,
    scheduler,
)


class _Uuid:
    UUID = real_uuid.UUID
    uuid5 = staticmethod(real_uuid.uuid5)

    @staticmethod
    def uuid4() -> real_uuid.UUID:
        return real_uuid.UUID(int=scheduler().random.getrandbits(128), version=4)


def _producer(settings: Any, client_id: str, **more: Any) -> FakeProducer:
    return FakeProducer(connections(), more)


def _reader(settings: Any, client_id: str, **more: Any) -> FakeConsumer:
    return FakeConsumer(connections(), {"group.id": client_id, **more})


class _InTurn:
    """Replaces an executor's threads."""

    def __init__(self, workers: int) -> None:
        del workers

    def __enter__(self) -> _InTurn:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    map = staticmethod(map)


@contextmanager
def _noted_transaction(engine: Any, service: Any, partition: int, epoch: int, most: int) -> Iterator[Transaction]:
    """The real transaction, labeled with its owner for the oracle."""
    with transaction.shard_transaction(engine, service, partition, epoch, most) as tx:
        noted: Any = tx.conn
        noted.notes["shard"] = (f"{service.package}_shard", partition, epoch)
        yield tx


def _announce(notifications: Any) -> None:
    """Announce a commit: this process hears it immediately, the others a little later.

    The others hear nothing if this process is dead by then.
    """
    scheduler().step("announce")
    scheduler().me().process.announce(list(notifications))  # type: ignore[attr-defined]


def _retrying(**how: Any) -> Retrying:
    return Retrying(sleep=Time.sleep, **how)


def _start_as_task(self: Any) -> None:
    """Replaces ``threading.Thread.start`` in the services' threads."""
    running = scheduler()
    running.spawn(running.me().process, self.name, self.run)


def _no_join(self: Any, timeout: float | None = None) -> None:
    """Replaces ``join`` with a no-op: the simulation tracks a stopping process's tasks itself."""


_PACKAGES = ("retrofill", "retrofill_core", "backfill_planner", "run_starter", "deadline_watcher", "callback_runner")
# module → names to replace
_EXCHANGED: dict[str, dict[str, Any]] = {
    "retrofill_core.bus.worker.context": {"time": Time, "shard_transaction": _noted_transaction},
    "retrofill_core.bus.worker.batches": {"time": Time},
    "retrofill_core.bus.worker.loop": {"time": Time},
    "retrofill_core.bus.worker.shard": {"time": Time},
    "retrofill_core.bus.transaction": {"announce": _announce},
    "retrofill_core.bus.inbox": {"queue": Queue},
    "retrofill_core.bus.envelope": {"uuid": _Uuid},
    "retrofill_core.bus.takeover": {"admin": lambda settings, client_id: FakeAdmin(connections())},
    "retrofill_core.bus.poller": {
        "Consumer": lambda config: FakeConsumer(connections(), config),
        "SimpleQueue": CallsQueue,
        "Future": Future,
        "time": Time,
        "threading": Threading,
        "Poller.start": _start_as_task,
        "Poller.join": _no_join,
    },
    "retrofill_core.bus.relay.sending": {"time": Time},
    "retrofill_core.bus.relay.refusals": {"time": Time},
    "retrofill_core.bus.relay.cursor": {
        "time": Time,
        "reader": _reader,
        "threading": Threading,
        "Membership.start": _start_as_task,
        "Membership.join": _no_join,
    },
    "retrofill_core.bus.relay.relay": {
        "threading": Threading,
        "time": Time,
        "producer": _producer,
        "ThreadPoolExecutor": _InTurn,
        "Relay.start": _start_as_task,
        "Relay.join": _no_join,
    },
    "retrofill_core.bus.metrics": {"register": lambda collector: None},
    "backfill_planner.admission": {"time": Time},
    "backfill_planner.progress": {"time": Time},
    "run_starter.handler": {"producer": _producer},
    "run_starter.reports.leases": {"time": Time},
    "run_starter.memory": {"time": Time},
    "run_starter.host.seats": {
        "threading": Threading,
        "time": Time,
        "announce": _announce,
        "Seats.start": _start_as_task,
        "Seats.join": _no_join,
    },
    "run_starter.host.hosting": {
        "threading": Threading,
        "time": Time,
        "Watch.start": _start_as_task,
        "Watch.join": _no_join,
    },
    # Its senders poll too.
    "run_starter.host.report_wire": {"ReportWire._serve": lambda wire: None},
    "retrofill_core.bus.handler": {"time": Time},
    "callback_runner.call": {"threading": Threading, "time": Time, "Retrying": _retrying},
    "callback_runner.handler": {
        "threading": Threading,
        "time": Time,
        "make_engine": lambda dsn, name, **_: scheduler().me().process.make_engine(),  # type: ignore[attr-defined]
        "Kinds": lambda settings, installation, instance: scheduler().me().process.kinds,  # type: ignore[attr-defined]
    },
    "callback_runner.record": {"uuid": _Uuid},
}


@contextmanager
def exchanged(level: int = logging.CRITICAL) -> Iterator[None]:
    """Run the services' modules on the simulation set with ``running()``; they log from ``level``."""
    before: list[tuple[Any, str, Any]] = []
    root = logging.getLogger()
    level_before = root.level
    root.setLevel(level)
    for module, names in _EXCHANGED.items():
        for name, instead in names.items():
            owner: Any = import_module(module)
            *path, last = name.split(".")
            for part in path:
                owner = getattr(owner, part)
            before.append((owner, last, owner.__dict__.get(last, _MISSING)))
            setattr(owner, last, instead)
    try:
        with interned(_PACKAGES):
            yield
    finally:
        for owner, name, value in reversed(before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        root.setLevel(level_before)


_MISSING = object()
