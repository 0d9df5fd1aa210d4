"""The run-starter's handler: records reports; its checks start runs, cancel them and end leases."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection

from retrofill.errors import kind_and_line
from retrofill_core.attempt_logs import folder_of
from retrofill_core.bus import metrics
from retrofill_core.bus.clients import producer
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Conflict, Fault, Poison, classify, needing_rows
from retrofill_core.bus.handler import ALL_ACTIVE, ALL_NOW, EVERY_SECONDS, Handler, Received, check_all_active
from retrofill_core.bus.service import Context
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import (
    BackfillApproved,
    BackfillCancelling,
    BackfillChanged,
    BackfillEvent,
    BackfillPlanned,
    BackfillResumed,
    RunCancelAccepted,
    RunsRetried,
)
from retrofill_core.contract.runs import RunStaged
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.store import attempts, backfills, claims, hosts, run_commands
from retrofill_core.store import runs as store
from retrofill_core.user_code.unpacked import code_of
from run_starter.claims.checks import Claims
from run_starter.claims.starting import Starting
from run_starter.definitions import Definitions
from run_starter.executors import Executor
from run_starter.executors.build import Pools, build_executors
from run_starter.executors.logs import LogPage
from run_starter.host.hosting import DriverHost, Watch
from run_starter.host.launching import Launching
from run_starter.host.lineage import lineage_of
from run_starter.host.report_wire import ReportWire
from run_starter.host.seats import Seats
from run_starter.memory import LEASES_KEY, SUSPECTS_KEY, backfill_key, backfills_in, key_in, pipeline_key, pipelines_in
from run_starter.reports.handling import handle_reports
from run_starter.reports.leases import Leases
from run_starter.reports.marking import apply_dead

CHANNELS = (attempts.ATTEMPT_CHANNEL, store.SLOT_CHANNEL, hosts.HOST_CHANNEL, hosts.SEAT_CHANNEL)
_TO_CHECK = (
    *(BackfillPlanned, BackfillResumed, BackfillApproved, BackfillCancelling, BackfillChanged),
    *(RunCancelAccepted, RunsRetried),
)
# Checks with a transaction of their own.
ALONE = (LEASES_KEY, ALL_ACTIVE, ALL_NOW, SUSPECTS_KEY)


class StarterHandler(Handler):
    of_owners: Collection[str] = (store.SLOT_CHANNEL, hosts.SEAT_CHANNEL)

    def __init__(self, context: Context, executors: Mapping[str, Executor] | None = None) -> None:
        """``executors``: by pool, instead of those that the settings describe."""
        settings = context.settings
        self._context = context
        self._definitions = Definitions()
        # The last task's report travels with the run's, which follows at once.
        # They wait for Kafka for as long as it takes, as many as the client keeps (``queue.buffering.max.messages``).
        reports = partial(
            producer, settings, f"{context.instance}-reports", **{"linger.ms": 1, "message.timeout.ms": 0}
        )
        self.host = DriverHost(
            context.engine,
            ReportWire(reports, settings.topic_prefix, context.partitions),
            partial(code_of, settings),
            lineage_of(settings),
        )
        self._executor = build_executors(settings, self.host) if executors is None else Pools(executors)
        self._leases = Leases(context.topic_ids.ends, self._definitions, settings.max_lost_attempts, context.partitions)
        launching = Launching(
            self._executor,
            self._definitions,
            settings.lease_seconds,
            launched=lambda: self._watch.wake(),
            installation=context.installation,
            keep_replaced_days=settings.keep_replaced_days,
            staged_tables=settings.staged_tables,
        )
        by_rows = replace(launching, definitions=Definitions())
        logs = context.serve(f"/logs/{secrets.token_hex(16)}/", LogPage(folder_of(settings)))
        pools = self._executor.executors
        self._seats = Seats(context.engine, context.instance, settings, self.host, by_rows, pools, logs)
        self._watch = Watch(context.engine, self._executor, self.host.heartbeats, lambda: self._seats.ids)
        self._watch.start()
        self._seats.start()
        self._claims = Claims(Starting(launching, self._leases, lambda: self._seats.ids), settings.driver_slots)
        # Shards whose next batch leaves its checks to transactions of their own.
        self._claim_later: set[int] = set()
        metrics.register(
            metrics.Polled("retrofill_runs", "Runs that have not ended, of all backfills", "state", self._runs)
        )
        metrics.register(
            metrics.Polled("retrofill_drivers", "Seats of this instance", "state", self._seats.counts, seconds=0.0)
        )

    def _runs(self) -> dict[str, float]:
        with self._context.engine.connect() as conn:
            return store.count_unfinished(conn)

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Apply the drivers' reports together; events of backfills only schedule checks."""
        reports = [one for one in received if one.record.topic == Topic.RUN_REPORTS]
        freed = 0
        if reports:
            renewed, freed = handle_reports(
                tx,
                reports,
                self._definitions,
                max_lost_attempts=self._context.settings.max_lost_attempts,
                partitions=self._context.partitions,
            )
            self._leases.renewed(tx.partition, renewed)
            if any(isinstance(one.message, RunStaged) for one in reports):
                # Without a detour over notifications.
                tx.after_commit.append(self.host.wake)
        for one in received:
            if one.record.topic == Topic.BACKFILL_EVENTS:
                self._hint(tx, one)
        if freed > self._claim_at_once(tx):
            tx.notify(hosts.SEAT_CHANNEL, [""])

    def dead(self, tx: Transaction, record: Record, reason: str) -> None:
        """What follows from a report that cannot be applied: its driver would wait for an answer for ever."""
        if record.topic == Topic.RUN_REPORTS:
            renewed = apply_dead(
                tx,
                record,
                reason,
                self._definitions,
                max_lost_attempts=self._context.settings.max_lost_attempts,
                partitions=self._context.partitions,
            )
            self._leases.renewed(tx.partition, renewed)

    def _claim_at_once(self, tx: Transaction) -> int:
        """Start the next runs in the transaction in which others ended: it saves a commit.

        Returns how many attempts it started.

        The messages must not be refused because of a claim: if one raises, the batch is repeated
        and the checks follow in a transaction of their own (``docs/decisions/claims-at-once.md``).
        """
        if tx.partition in self._claim_later:
            self._claim_later.discard(tx.partition)
            return 0
        keys = [key for key, after in tx.checks.items() if after <= 0 and key not in ALONE]
        if not keys:
            return 0
        for key in keys:
            del tx.checks[key]
        try:
            with needing_rows():
                return self._claims.check_after_ends(tx, keys)
        except Exception as e:
            if classify(e) not in (Fault.FENCED, Fault.WAIT):
                self._claim_later.add(tx.partition)
                raise Conflict(f"checks after reports: {kind_and_line(e)}") from e
            raise

    def _hint(self, tx: Transaction, one: Received) -> None:
        match one.message:
            case BackfillEvent(backfill_id=id):
                if isinstance(one.message, _TO_CHECK):
                    tx.schedule_check(backfill_key(id))
            case other:
                raise Poison(f"a {type(other).__name__} does not belong on {one.record.topic}")

    def check(self, tx: Transaction, keys: Sequence[str]) -> None:
        """Check the shard's leases, its active backfills, its suspects, or some backfills and pipelines."""
        if LEASES_KEY in keys:
            self._leases.check(tx)
        for key in (ALL_ACTIVE, ALL_NOW):
            if key in keys:
                check_all_active(tx, key, self._to_check(tx))
        if SUSPECTS_KEY in keys:
            waiting = claims.pipelines_with_suspects(tx.conn, tx.partition)
            for no in waiting:
                tx.schedule_check(pipeline_key(no))
            if waiting:
                # Whose turn it is may not take it.
                tx.schedule_check(SUSPECTS_KEY, claims.TURN.total_seconds())
        ids, numbers = backfills_in(keys), pipelines_in(keys)
        if ids or numbers:
            self._claims.check(tx, ids, numbers)

    def _to_check(self, tx: Transaction) -> list[str]:
        """The fewest keys that cover all active work of the shard, in case a hint was lost."""
        active = backfills.active(tx.conn, tx.partition)
        self._claims.of(tx.partition).forget_all_but({each.id for each in active})
        one_by_one = {each.id for each in active if each.state == BackfillState.CANCELLING}
        one_by_one |= set(store.backfills_to_publish(tx.conn, tx.partition))
        one_by_one |= set(run_commands.backfills_with_cancels(tx.conn, tx.partition))
        numbers = dict.fromkeys(each.pipeline_no for each in active if each.state == BackfillState.RUNNING)
        return [LEASES_KEY, *map(backfill_key, sorted(one_by_one)), *map(pipeline_key, numbers)]

    def group(self, keys: Sequence[str]) -> Sequence[Sequence[str]]:
        """Leases first and alone: they lock runs, which come after backfills in the lock order.
        Then all backfills and pipelines in one transaction.
        """
        others = [key for key in keys if key not in ALONE]
        return [*([key] for key in keys if key in ALONE), *([others] if others else [])]

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:
        """Check the shard's leases and all its active backfills."""
        self._leases.taken(partition)
        ids = backfills.active_of_shard(conn, partition)
        return {LEASES_KEY: 0.0, ALL_ACTIVE: EVERY_SECONDS} | {backfill_key(id): 0.0 for id in ids}

    def lost(self, partition: int) -> None:
        self._leases.forget(partition)
        self._claims.forget(partition)
        self._claim_later.discard(partition)

    def notified(self, channel: str, payload: str, partitions: Sequence[int]) -> Mapping[int, Mapping[str, float]]:
        """A seat or a pipeline's slot became free, or something about a hosted attempt changed."""
        if channel in ("", attempts.ATTEMPT_CHANNEL):
            self._watch.wake()
            self.host.wake()
        if channel in ("", hosts.HOST_CHANNEL) and payload in ("", *map(str, self._seats.ids)):
            self._seats.wake()
        if channel in (attempts.ATTEMPT_CHANNEL, hosts.HOST_CHANNEL):
            return {}
        if channel == "":
            return {partition: {ALL_NOW: 0.0} for partition in partitions}
        checks: dict[int, list[str]] = {}
        for partition in partitions:
            if channel == hosts.SEAT_CHANNEL:
                checks[partition] = self._claims.starving(partition, payload)
            elif (found := key_in(payload)) is not None:
                key, shard = found
                if shard != partition and self._claims.of(partition).pipelines.issuperset(pipelines_in([key])):
                    checks[partition] = [key]
        return {partition: dict.fromkeys(keys, 0.0) for partition, keys in checks.items()}

    def read_to(self, partition: int, ends: Mapping[str, int]) -> None:
        self._leases.read_to(partition, ends)

    def close(self) -> None:
        """Let drivers finish what they began; end the rest and report them, so nobody need wait."""
        self._seats.drain()
        self.host.drain()
        self.host.wait_until(lambda: not self._executor.hosted(), self._context.settings.drain_seconds)
        self.host.closing()
        self._watch.stop()
        self._executor.close()
        self._seats.leave()
        self.host.close()
