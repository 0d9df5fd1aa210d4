"""gather → decide → apply: at the next moment of a shard, and when what a deadline is about ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection

from deadline_watcher.decide import seconds_to_next
from deadline_watcher.setaside import SetAside
from deadline_watcher.verdicts import apply_verdicts, recover
from deadline_watcher.windows import close_due
from retrofill.bus.faults import Poison
from retrofill.bus.handler import QuietHandler, Received
from retrofill.bus.observability import metrics
from retrofill.bus.service import Context
from retrofill.bus.transaction import Transaction
from retrofill.contract.deadlines import DeadlineArmed, DeadlineResolved
from retrofill.store import deadlines

# What is looked at: the armed deadlines of the shard whose moment came, and with its id one of which it was told.
DUE = "due"
NAMED = "named:"
# A walk through the armed deadlines of the shard after it was taken over, window by window, so that others are not kept
# waiting: what it looks for is decided at its moment anyway.
LEFT = "left"
LEFT_SECONDS = 0.2
# A deadline about what somebody else has locked is looked at again this soon.
AGAIN_SECONDS = 0.1


class WatcherHandler(QuietHandler):
    """The deadline-watcher. One probe of an index tells the next moment of a shard."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._set_aside = SetAside()
        # How far the walk through each shard is.
        self._left: dict[int, deadlines.Place] = {}
        metrics.register(
            metrics.Polled(
                "retrofill_deadlines", "Deadlines that wait: armed, and of these overdue", "state", self._count
            )
        )

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Both messages are hints: what they lead to is decided from the rows."""
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
            # Before the judging, so that what is found missed by it is not told twice.
            recover(tx, deadlines.late(tx.conn, tx.partition, resolved))
            rows = deadlines.lock_named(tx.conn, tx.partition, resolved)
            apply_verdicts(tx, rows)
            self._come_back(tx, resolved - {row["id"] for row in rows})
            # A miss may have opened a digest.
            tx.schedule_check(DUE)

    def check(self, tx: Transaction, keys: Sequence[str]) -> None:
        """One key: what is due, what a former owner left, or a deadline that a message named."""
        (key,) = keys
        if key == DUE:
            self._check_due(tx)
        elif key == LEFT:
            self._check_left(tx)
        else:
            self._check_one(tx, int(key.removeprefix(NAMED)))

    def _check_due(self, tx: Transaction) -> None:
        """Decide on what is due, and compute when the next moment is."""
        # First, so that what is missed now opens the next window and does not lengthen one that is over.
        close_due(tx)
        excluding = self._set_aside.ids()
        rows = deadlines.lock_due(tx.conn, tx.partition, excluding)
        self._set_aside.judge(tx, rows)
        earliest, now = deadlines.next_moment(tx.conn, tx.partition, self._set_aside.ids())
        tx.schedule_check(DUE, seconds_to_next(earliest, now, more=len(rows) >= deadlines.BATCH))

    def _check_left(self, tx: Transaction) -> None:
        """A former owner meant to come back to some; they need not wait for a far moment."""
        left, place = deadlines.left_armed(tx.conn, tx.partition, self._left.get(tx.partition, deadlines.START))
        for id in left:
            tx.schedule_check(f"{NAMED}{id}")
        if place is None:
            tx.after_commit.append(lambda: self.lost(tx.partition))
        else:
            tx.after_commit.append(lambda: self._left.update({tx.partition: place}))
            tx.schedule_check(LEFT, LEFT_SECONDS)

    def _check_one(self, tx: Transaction, id: int) -> None:
        rows = deadlines.lock_named(tx.conn, tx.partition, [id])
        self._set_aside.judge(tx, rows)
        # A miss may have opened a digest.
        tx.schedule_check(DUE)
        if not rows:
            self._come_back(tx, {id})

    def _come_back(self, tx: Transaction, ids: Collection[int]) -> None:
        """A late heartbeat locks its run although that has ended: it is no reason to wait for a far moment."""
        for id in deadlines.armed(tx.conn, tx.partition, ids) if ids else ():
            tx.schedule_check(f"{NAMED}{id}", AGAIN_SECONDS)

    def _count(self) -> dict[str, float]:
        with self._context.engine.connect() as conn:
            return deadlines.count_waiting(conn)

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:  # noqa: ARG002 - nothing is read here
        """Look at once: moments may have passed while nobody watched, and a former owner meant to come back to some."""
        self.lost(partition)
        return {DUE: 0.0, LEFT: 0.0}

    def lost(self, partition: int) -> None:
        """Whoever takes it next walks from the beginning."""
        self._left.pop(partition, None)
