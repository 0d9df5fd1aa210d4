"""gather → decide → apply, in one transaction a batch; looks start runs, cancel them and end leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from retrofill.bus import metrics
from retrofill.bus.clients import producer
from retrofill.bus.faults import Poison
from retrofill.bus.handler import QuietHandler, Received
from retrofill.bus.service import Context
from retrofill.bus.topics import Topic
from retrofill.bus.transaction import Transaction
from retrofill.messages.backfills import (
    BackfillCancelling,
    BackfillEnded,
    BackfillEvent,
    BackfillPlanned,
    BackfillResumed,
)
from retrofill.store import backfills
from retrofill.store import runs as store
from run_starter.claims import Claims
from run_starter.definitions import Definitions
from run_starter.executors import Executor
from run_starter.executors.build import build_executor
from run_starter.hosting import DriverHost, Watch
from run_starter.leases import LOOK, Leases
from run_starter.reports import handle_reports

DRIVER_FREE = "driver_free"
CHANNELS = (store.RUN_CHANNEL, store.SLOT_CHANNEL)
_TO_LOOK_AT = (BackfillPlanned, BackfillResumed, BackfillCancelling)


class StarterHandler(QuietHandler):
    """The run-starter."""

    def __init__(self, context: Context, executor: Executor | None = None) -> None:
        settings = context.settings
        self._context = context
        self._definitions = Definitions()
        self.host = DriverHost(
            context.engine,
            producer(settings, f"{context.instance}-reports"),
            settings.topic_prefix,
            freed=lambda: context.notified(DRIVER_FREE, ""),
            partitions=context.partitions,
        )
        self._executor = executor or build_executor(settings, self.host)
        self._watch = Watch(context.engine, self._executor)
        self._watch.start()
        self._claims = Claims(
            self._definitions, self._executor, context.instance, settings.lease_seconds, launched=self._watch.poke
        )
        self._leases = Leases(context.topic_ids.ends, self._definitions, settings.max_lost_attempts)
        self._shard_of: dict[str, int] = {}
        metrics.register(
            metrics.Polled("retrofill_runs", "Runs that have not ended, of all backfills", "state", self._runs)
        )
        metrics.register(
            metrics.Polled("retrofill_drivers", "Drivers of this instance", "state", self._drivers, seconds=0.0)
        )

    def _runs(self) -> dict[str, float]:
        with self._context.engine.connect() as conn:
            return store.count_unfinished(conn)

    def _drivers(self) -> dict[str, float]:
        return {"free": self._executor.free(), "busy": len(self._executor.hosted())}

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Reports of drivers in bulk; events of backfills only say where to look."""
        reports = [one for one in received if one.record.topic == Topic.RUN_REPORTS]
        if reports:
            settings = self._context.settings
            handle_reports(
                tx,
                reports,
                self._definitions,
                lease_seconds=settings.lease_seconds,
                max_lost_attempts=settings.max_lost_attempts,
                partitions=self._context.partitions,
            )
        for one in received:
            if one.record.topic == Topic.BACKFILL_EVENTS:
                self._hint(tx, one)

    def _hint(self, tx: Transaction, one: Received) -> None:
        match one.message:
            case BackfillEnded(backfill_id=id):
                self._claims.forget(id)
            case BackfillEvent(backfill_id=id) if isinstance(one.message, _TO_LOOK_AT):
                self._look_at(tx, id)
            case BackfillEvent():
                pass
            case other:
                raise Poison(f"a {type(other).__name__} does not belong on {one.record.topic}")

    def _look_at(self, tx: Transaction, id: str) -> None:
        self._shard_of[id] = tx.partition
        tx.look_at(f"b:{id}")

    def look(self, tx: Transaction, key: str) -> None:
        """One backfill (``b:`` and its id), or the leases of the shard."""
        self.look_at_all(tx, [key])

    def look_at_all(self, tx: Transaction, keys: Sequence[str]) -> None:
        """Backfills, or the leases of the shard."""
        if LOOK in keys:
            self._leases.look(tx)
        ids = [key.removeprefix("b:") for key in keys if key != LOOK]
        self._shard_of |= dict.fromkeys(ids, tx.partition)
        if ids:
            self._claims.look(tx, ids)

    def rank(self, keys: Sequence[str]) -> Sequence[str]:
        """Leases first, then the backfills with the fewest live runs."""
        return sorted(keys, key=lambda key: -1 if key == LOOK else self._claims.live.get(key.removeprefix("b:"), 0))

    def together(self, keys: Sequence[str]) -> Sequence[Sequence[str]]:
        """The leases alone: their transaction locks runs, which come after backfills. All backfills together."""
        ids = [key for key in keys if key != LOOK]
        return [group for group in ([key for key in keys if key == LOOK], ids) if group]

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:
        """All active backfills of the shard, and its leases."""
        ids = backfills.active_of_shard(conn, partition)
        self._shard_of |= dict.fromkeys(ids, partition)
        return {LOOK: 0.0} | {f"b:{id}": 0.0 for id in ids}

    def lost(self, partition: int) -> None:
        """Forget what the next owner reads from the rows."""
        self._leases.forget(partition)
        for id in [id for id, shard in self._shard_of.items() if shard == partition]:
            del self._shard_of[id]
            self._claims.forget(id)

    def notified(self, channel: str, payload: str, partitions: Sequence[int]) -> Mapping[int, Mapping[str, float]]:
        """A driver is free, a slot of a pipeline is free, or a hosted run changed."""
        if channel in ("", store.RUN_CHANNEL):
            self._watch.poke()
            self.host.poke()
        if channel == store.RUN_CHANNEL:
            return {}
        if channel == DRIVER_FREE:
            ids = list(self._claims.starving)
        elif channel == store.SLOT_CHANNEL:
            ids = [id for id, no in self._claims.pipeline_of.items() if str(no) == payload]
        else:
            ids = list(self._shard_of)
        looks: dict[int, dict[str, float]] = {}
        for id in ids:
            partition = self._shard_of.get(id)
            if partition is not None and partition in partitions:
                looks.setdefault(partition, {})[f"b:{id}"] = 0.0
        return looks

    def read_to(self, partition: int, ends: Mapping[str, int]) -> None:
        """So far the reports have been handled."""
        self._leases.read_to(partition, ends)

    def close(self) -> None:
        """End the drivers and say so, so that the next owner need not wait for their leases."""
        self.host.closing()
        self._watch.stop()
        self._executor.close()
        self.host.close()
