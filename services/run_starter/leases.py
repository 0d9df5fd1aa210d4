"""Lost leases: a silent driver is dead only once ``run-reports`` was read to its end as of a moment after the lease's end.

Otherwise a backlog of heartbeats would count as death.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from confluent_kafka import KafkaException

from retrofill.bus.crash import crash_point
from retrofill.bus.takeover import Ends
from retrofill.bus.topics import Topic
from retrofill.bus.transaction import Transaction
from retrofill.domain.run import LIVE
from retrofill.store import runs as store
from retrofill.store.clock import database_now
from run_starter.decide import RunOutcome, lose
from run_starter.definitions import Definitions
from run_starter.endings import write_ends, write_stages
from run_starter.reports import run_row

log = structlog.get_logger(__name__)
LOOK = "leases"
WAIT_FOR_END_SECONDS = 0.1
AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Asked:
    """Where the end of ``run-reports`` was, asked after ``moment`` of the database's clock."""

    moment: datetime
    end: int


@dataclass
class Leases:
    """The leases of the shards of one instance."""

    ends: Ends
    definitions: Definitions
    max_lost_attempts: int
    asked: dict[int, Asked] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)

    def read_to(self, partition: int, ends: Mapping[str, int]) -> None:
        """So far the reports of a shard have been handled."""
        self.read[partition] = ends.get(str(Topic.RUN_REPORTS), -1)

    def forget(self, partition: int) -> None:
        """The shard is somebody else's."""
        self.asked.pop(partition, None)
        self.read.pop(partition, None)

    def look(self, tx: Transaction) -> None:
        """End the leases that are known to be over; ask about those that seem to be."""
        shard = tx.partition
        asked = self.asked.get(shard)
        if asked is not None and self.read.get(shard, -1) >= asked.end:
            del self.asked[shard]
            self._expire(tx, store.expired(tx.conn, shard, asked.moment), asked.moment)
            asked = None
        earliest = store.earliest_lease(tx.conn, shard)
        if earliest is None:
            return
        now = database_now(tx.conn)
        remaining = (earliest - now).total_seconds()
        if remaining > 0:
            tx.look_at(LOOK, remaining + 0.05)
        elif asked is None:
            # The broker is asked after this transaction: nobody waits for it inside one.
            tx.after_commit.append(lambda: self._ask(shard, now))
            tx.look_at(LOOK, WAIT_FOR_END_SECONDS)
        else:
            tx.look_at(LOOK, WAIT_FOR_END_SECONDS)

    def _ask(self, shard: int, moment: datetime) -> None:
        topic = str(Topic.RUN_REPORTS)
        try:
            self.asked[shard] = Asked(moment, self.ends.high_watermarks({topic: [shard]})[topic, shard])
        except KafkaException as e:
            log.warning("end_unknown", shard=shard, error=str(e))

    def _expire(self, tx: Transaction, ids: list[int], moment: datetime) -> None:
        rows = {
            id: row
            for id, row in store.lock(tx.conn, ids).items()
            if row["state"] in LIVE
            and row["host"] is not None
            and row["lease_until"] is not None
            and row["lease_until"] < moment
        }
        outcomes = {}
        for id, row in rows.items():
            outcomes[id] = RunOutcome()
            lose(run_row(row), outcomes[id], self.max_lost_attempts, counted=True)
            log.warning("lease_ended", run=id, attempt=row["attempt"], backfill=row["backfill_id"])
        pipelines = {row["backfill_id"]: self.definitions.of(tx.conn, row["backfill_id"]).name for row in rows.values()}
        now = database_now(tx.conn)
        write_stages(tx, rows, outcomes, pipelines, now)
        write_ends(tx, rows, outcomes, pipelines, now)
        tx.notify(store.RUN_CHANNEL, rows)
        if rows:
            crash_point("lease:end-written")
