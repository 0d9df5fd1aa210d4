"""The watcher's handler: judges deadlines when due, or once what they watch has ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection

from deadline_watcher import verdicts
from deadline_watcher.decide import seconds_to_next
from deadline_watcher.verdicts import apply_verdicts, call, recover, task_ends
from retrofill_core.bus import metrics
from retrofill_core.bus.faults import Poison
from retrofill_core.bus.handler import RECHECK_SECONDS, Handler, Received, SetAside
from retrofill_core.bus.service import Context
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import DeadlineArmed, DeadlineResolved
from retrofill_core.contract.topics import Topic
from retrofill_core.store import deadlines, digests
from retrofill_core.store.sql import database_now

# A digest lists at most this many misses; all are rows of ``deadline`` with its ``digest_id``.
LISTED = 1_000


# Check keys: the shard's due deadlines, and one deadline by id.
DUE = "due"
NAMED = "named:"
# After a takeover: a sweep through the shard's armed deadlines, in batches so it does not block
# due ones. What it would miss is decided when it is due.
SWEEP = "sweep"
SWEEP_SECONDS = 0.2


class WatcherHandler(Handler):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._deadlines = SetAside("deadline_set_aside", logged={"deadline": "id", "alert": "alert"})
        self._digests = SetAside("digest_set_aside", logged={"digest": "id", "alert": "alert"})
        # Position of each shard's sweep.
        self._sweeps: dict[int, deadlines.ScanPosition] = {}
        metrics.register(
            metrics.Polled(
                "retrofill_deadlines", "Deadlines that wait: armed, and of these overdue", "state", self._count
            )
        )

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Both messages are hints; the rows decide."""
        resolved: set[int] = set()
        for one in received:
            match one.message:
                case DeadlineArmed():
                    tx.schedule_check(DUE)
                case DeadlineResolved(deadline_id=id):
                    resolved.add(id)
                case other:
                    raise Poison(f"a {type(other).__name__} does not belong on {one.record.topic}")
        if resolved:
            # Before judging, so a miss found there is not reported as recovered twice.
            recover(tx, deadlines.late(tx.conn, tx.partition, resolved))
            armed = deadlines.lock_named(tx.conn, tx.partition, resolved)
            apply_verdicts(tx, armed)
            self._recheck_soon(tx, resolved - {one.id for one in armed})
            # A miss may have opened a digest.
            tx.schedule_check(DUE)

    def check(self, tx: Transaction, keys: Sequence[str]) -> None:
        """Check due deadlines, continue the sweep, or check the deadline that a key names."""
        (key,) = keys
        if key == DUE:
            self._check_due(tx)
        elif key == SWEEP:
            self._sweep(tx)
        else:
            self._check_one(tx, int(key.removeprefix(NAMED)))

    def _check_due(self, tx: Transaction) -> None:
        """Judge due deadlines and schedule the next check."""
        # First, so a miss found now opens a new window instead of joining one that has ended.
        close_due(tx, self._digests)
        due = deadlines.lock_due(tx.conn, tx.partition, self._deadlines.ids())
        self._deadlines.each(tx, due, apply_verdicts)
        # A digest has the id of a deadline that is missed, so no other row is excluded with it.
        excluding = self._deadlines.ids() | self._digests.ids()
        earliest, now = deadlines.next_moment(tx.conn, tx.partition, excluding)
        tx.schedule_check(DUE, seconds_to_next(earliest, now, more=len(due) >= deadlines.BATCH))

    def _sweep(self, tx: Transaction) -> None:
        """Check deadlines that a former owner meant to recheck before they are due."""
        left, place = deadlines.left_armed(tx.conn, tx.partition, self._sweeps.get(tx.partition, deadlines.START))
        for id in left:
            tx.schedule_check(f"{NAMED}{id}")
        if place is None:
            tx.after_commit.append(lambda: self.lost(tx.partition))
        else:
            tx.after_commit.append(lambda: self._sweeps.update({tx.partition: place}))
            tx.schedule_check(SWEEP, SWEEP_SECONDS)

    def _check_one(self, tx: Transaction, id: int) -> None:
        armed = deadlines.lock_named(tx.conn, tx.partition, [id])
        self._deadlines.each(tx, armed, apply_verdicts)
        # A miss may have opened a digest.
        tx.schedule_check(DUE)
        if not armed:
            self._recheck_soon(tx, {id})

    def _recheck_soon(self, tx: Transaction, ids: Collection[int]) -> None:
        """Check deadlines again soon whose run was locked, perhaps by a late heartbeat."""
        for id in deadlines.armed(tx.conn, tx.partition, ids) if ids else ():
            tx.schedule_check(f"{NAMED}{id}", RECHECK_SECONDS)

    def _count(self) -> dict[str, float]:
        with self._context.engine.connect() as conn:
            return deadlines.count_waiting(conn)

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:  # noqa: ARG002 - nothing is read here
        """Check at once: deadlines may be due, and a former owner may have left rechecks."""
        self.lost(partition)
        return {DUE: 0.0, SWEEP: 0.0}

    def lost(self, partition: int) -> None:
        """Restart the sweep at the next takeover."""
        self._sweeps.pop(partition, None)


def close_due(tx: Transaction, set_aside: SetAside) -> None:
    """Close the shard's digests whose window has ended, except those that are set aside."""
    set_aside.each(tx, digests.lock_due(tx.conn, tx.partition, set_aside.ids()), _close)


def _close(tx: Transaction, windows: Sequence[digests.Window]) -> None:
    for window in windows:
        now = database_now(tx.conn)
        digests.close(tx.conn, window.id, now)
        # No miss can join any more. Reading is bounded by LISTED, however many did.
        count = deadlines.count_of_digest(tx.conn, window.id)
        missed = deadlines.of_digest(tx.conn, window.id, LISTED)
        tasks = task_ends(tx, missed)
        backfills = deadlines.backfill_facts(tx.conn, {one.backfill_id for one in missed})
        facts = [verdicts.in_digest(one, backfills[one.backfill_id], tasks) for one in missed]
        first = missed[0]
        parts = verdicts.digest(window, first.label, facts, count, now, tx.max_message_bytes)
        for part in parts:
            tx.emit(Topic.DEADLINE_MISSED, window.id, part)
        if first.callback is not None:
            timezone = backfills[first.backfill_id].timezone
            call(tx, [verdicts.callback(first, first.callback, facts[0], parts[0], timezone, now, count)])
