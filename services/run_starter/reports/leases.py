"""Ends leases, and interrupts runs that timed out.

A silent driver counts as dead only once ``run-reports`` has been read to its end,
as of a moment after the lease's end. Otherwise a backlog of heartbeats would count as death.

Two clocks must agree: the database's, and the owner's monotonic one, which measures for how long it
has seen the lease unchanged. A step of the database's clock thus ends none, and neither does the end
of an outage of Kafka, in which hosts renew leases in Postgres.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from confluent_kafka import KafkaException

from retrofill.log import get_log
from retrofill.sdk.names import MAX_BATCH
from retrofill.system.crash import crash_point
from retrofill_core.bus.handler import SetAside
from retrofill_core.bus.takeover import Ends
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import ErrorInfo
from retrofill_core.contract.topics import Topic
from retrofill_core.store import attempts, hosts
from retrofill_core.store import runs as store
from retrofill_core.store.rows import Attempt
from retrofill_core.store.sql import database_now
from run_starter.definitions import Definitions
from run_starter.memory import LEASES_KEY
from run_starter.reports.decide import Fold
from run_starter.reports.handling import Rows, settle
from run_starter.reports.marking import interrupt
from run_starter.reports.steps import HOST_SILENT, SILENT, Outcome

log = get_log(__name__)
WAIT_FOR_END_SECONDS = 0.1
UNHEARD = ErrorInfo(type="DriverLost", message="its host did not take it over in time")


@dataclass(frozen=True)
class Asked:
    """The end offset of ``run-reports``, read after ``moment`` of the database's clock."""

    moment: datetime
    end: int


@dataclass
class Leases:
    """The leases of an instance's shards."""

    ends: Ends
    definitions: Definitions
    max_lost_attempts: int
    partitions: int
    asked: dict[int, Asked] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)
    # By shard and live attempt: the end of its lease, and since when (monotonic) that is known to be the end.
    seen: dict[int, dict[int, tuple[datetime, float]]] = field(default_factory=dict)
    # Attempts that cannot be ended.
    set_aside: SetAside = field(
        default_factory=lambda: SetAside("lease_set_aside", logged={"attempt": "id", "backfill": "backfill_id"})
    )

    def taken(self, partition: int) -> None:
        """Measure the shard's leases from now: what its last owner saw is unknown."""
        self.seen[partition] = {}

    def renewed(self, partition: int, until: Mapping[int, datetime]) -> None:
        """Measure these leases from now. If the commit fails later, they only last longer."""
        now = time.monotonic()
        self.seen.setdefault(partition, {}).update({id: (end, now) for id, end in until.items()})

    def read_to(self, partition: int, ends: Mapping[str, int]) -> None:
        """Reports of the shard before these offsets have been handled."""
        self.read[partition] = ends.get(str(Topic.RUN_REPORTS), -1)

    def forget(self, partition: int) -> None:
        """Drop what is known of a shard that was lost."""
        for remembered in (self.asked, self.read, self.seen):
            remembered.pop(partition, None)

    def check(self, tx: Transaction) -> None:
        """Expire ended leases and interrupt what timed out, once the reports were read that far."""
        shard = tx.partition
        asked = self.asked.get(shard)
        if asked is not None and self.read.get(shard, -1) >= asked.end:
            del self.asked[shard]
            if not interrupt(tx, self.definitions, asked.moment):
                self._expire(tx, asked.moment)
            asked = None
        leases = self._leases(tx)
        if not leases:
            return
        now = database_now(tx.conn)
        remaining = min(self._due_in(shard, lease, now) for lease in leases)
        if remaining > 0:
            tx.schedule_check(LEASES_KEY, remaining + 0.05)
        elif asked is None:
            # After the commit, because a transaction must not wait for the broker.
            tx.after_commit.append(lambda: self._ask(shard, now))
            tx.schedule_check(LEASES_KEY, WAIT_FOR_END_SECONDS)
        else:
            tx.schedule_check(LEASES_KEY, WAIT_FOR_END_SECONDS)

    def _leases(self, tx: Transaction) -> list[attempts.Lease]:
        """The leases of live attempts without those set aside, which are looked at again later."""
        aside = self.set_aside.ids()
        if aside:
            tx.schedule_check(LEASES_KEY, self.set_aside.ends_in())
        found = attempts.leases(tx.conn, tx.partition)
        self._see(tx.partition, found)
        return [lease for lease in found if lease.attempt_id not in aside]

    def _see(self, shard: int, leases: Sequence[attempts.Lease]) -> None:
        """Measure those from now that have changed, or are new here. Forget those of other attempts."""
        now, before = time.monotonic(), self.seen.get(shard, {})
        self.seen[shard] = {
            lease.attempt_id: seen
            if (seen := before.get(lease.attempt_id)) is not None and seen[0] == lease.until
            else (lease.until, now)
            for lease in leases
        }

    def _due_in(self, shard: int, lease: attempts.Lease, now: datetime) -> float:
        """Seconds until the lease may end or a run of the attempt times out."""
        left = max(
            (lease.until - now).total_seconds(), self._remaining(shard, lease.attempt_id, lease.until, lease.seconds)
        )
        return left if lease.times_out_at is None else min(left, (lease.times_out_at - now).total_seconds())

    def _remaining(self, shard: int, attempt_id: int, until: datetime, seconds: float) -> float:
        """Seconds left of a lease, by this process's clock. All of it if it was renewed since it was seen last."""
        seen = self.seen.get(shard, {}).get(attempt_id)
        return seconds if seen is None or seen[0] != until else seen[1] + seconds - time.monotonic()

    def _ask(self, shard: int, moment: datetime) -> None:
        topic = str(Topic.RUN_REPORTS)
        try:
            self.asked[shard] = Asked(moment, self.ends.high_watermarks({topic: [shard]})[topic, shard])
        except KafkaException as e:
            log.warning("end_unknown", shard=shard, error=str(e))

    def _expire(self, tx: Transaction, moment: datetime) -> None:
        """End the attempts whose leases ended before ``moment``, or as many as one transaction can; the next ends more."""
        ids = [lease.attempt_id for lease in self._leases(tx) if lease.until < moment]
        # Seats are locked before attempts.
        unacknowledged = hosts.unacknowledged(tx.conn, ids) if ids else set()
        silent = hosts.silent(tx.conn, ids) if ids else set()
        found = {
            id: row
            for id, row in attempts.lock(tx.conn, ids).items()
            if row.lease_until is not None
            and row.lease_until < moment
            and self._remaining(tx.partition, id, row.lease_until, row.lease_seconds) <= 0
        }
        self.set_aside.each(tx, first_to_end(found), lambda tx, rows: self._lose(tx, rows, unacknowledged, silent))

    def _lose(
        self, tx: Transaction, rows: Sequence[Attempt], unacknowledged: Collection[int], silent: Collection[int]
    ) -> None:
        """End locked attempts. ``silent``: those whose hosts are silent, too."""
        found = {row.id: row for row in rows}

        def lose(fold: Fold) -> Outcome:
            for id, row in found.items():
                if id in unacknowledged:
                    fold.release(id, UNHEARD)
                else:
                    fold.lose(id, HOST_SILENT if id in silent else SILENT, shared=id in silent)
                log.warning("lease_ended", attempt=id, backfill=row.backfill_id)
            return fold.outcome

        settle(
            tx,
            Rows(found, store.lock(tx.conn, (), live_of=found)),
            lose,
            self.definitions,
            tasks={},
            max_lost_attempts=self.max_lost_attempts,
            partitions=self.partitions,
        )
        tx.notify(hosts.SEAT_CHANNEL, [""])
        crash_point("lease:end-written")


def first_to_end(found: Mapping[int, Attempt]) -> list[Attempt]:
    """Attempts with as many runs as the largest range together, or one: Postgres ends transactions that compute for long."""
    left = MAX_BATCH
    chosen: list[Attempt] = []
    for row in found.values():
        if chosen and row.runs > left:
            break
        chosen.append(row)
        left -= row.runs
    return chosen
