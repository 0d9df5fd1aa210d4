"""The part that a service overrides: handling messages and running checks.

Helps it to check everything again, and to set aside rows that a check cannot handle, so that they do not block their shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Fault, classify
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.base import Message

log = get_log(__name__)
# A row that another transaction has locked is checked again this soon.
RECHECK_SECONDS = 0.1
# A report that became a dead letter, or a lost event, leaves rows that no message points to. So everything active is
# checked again, spread over this time: a lost hint costs that much at most.
EVERY_SECONDS = 60.0
# Keys per transaction: as many as one pass of the loop checks (``CHECKS_PER_PASS``).
GROUP_SIZE = 50
# Keys for all active rows of a shard, over the next minute or at once. No id contains a line break.
ALL_ACTIVE, ALL_NOW = "\nall active", "\nall now"


@dataclass(frozen=True)
class Received:
    """A decoded message. ``message`` is ``None`` for a null value on a compacted topic.

    ``misplaced``: it is also republished to the partition of its key.
    """

    record: Record
    key: str
    message: Message | None
    # The message's own, or one derived from its offset, which never changes.
    ce_id: str
    misplaced: bool = False


@dataclass(frozen=True)
class Hold:
    """Handle nothing of a topic from ``offset`` on for ``seconds``; 0: until the next step."""

    offset: int
    seconds: float


class Handler:
    """One service. Methods are called from one thread; ``bus.faults`` classifies exceptions.

    Unless overridden, nothing waits, there are no checks and no state, and each key has a transaction
    of its own. ``of_owners``: channels on which only the owners of shards wait.
    """

    of_owners: Collection[str] = ()

    def admit(self, received: Sequence[Received]) -> Mapping[str, Hold]:
        """Messages that must wait, by topic. Runs before the transaction; may do I/O."""
        return {}

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Decide on a batch and apply it. May be called again after a rollback."""
        raise NotImplementedError

    def dead(self, tx: Transaction, record: Record, reason: str) -> None:
        """A message became a dead letter in this transaction, before the batch is handled."""

    def check(self, tx: Transaction, keys: Sequence[str]) -> None:
        """Decide from the rows, for one group of keys. May call ``tx.schedule_check``."""

    def group(self, keys: Sequence[str]) -> Sequence[Sequence[str]]:
        """Order the due ``keys``, in groups that share a transaction.

        If a group is refused, its keys are checked again one by one.
        """
        return [[key] for key in keys]

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:
        """Checks to run after a takeover: seconds from now by key."""
        return {}

    def lost(self, partition: int) -> None:
        """Drop state of a shard that this instance no longer owns."""

    def notified(self, channel: str, payload: str, partitions: Sequence[int]) -> Mapping[int, Mapping[str, float]]:
        """Checks that a notification calls for: by owned partition, seconds from now by key.

        ``channel`` is empty after a reconnect: notifications may have been missed.
        """
        return {}

    def read_to(self, partition: int, ends: Mapping[str, int]) -> None:
        """All messages of the shard before ``ends`` (offsets by topic) have been handled."""

    def close(self) -> None:
        """Finish and release what is left; the shards belong to others by now."""


def check_all_active(tx: Transaction, asked: str, keys: Sequence[str]) -> None:
    """Check ``keys`` at once for ``ALL_NOW``, spread over every minute for ``ALL_ACTIVE``."""
    groups = -(-len(keys) // GROUP_SIZE)
    pause = EVERY_SECONDS / max(groups, 1) if asked == ALL_ACTIVE else 0.0
    for n, key in enumerate(keys):
        tx.schedule_check(key, n // GROUP_SIZE * pause)
    if asked == ALL_ACTIVE:
        tx.schedule_check(ALL_ACTIVE, EVERY_SECONDS)


SET_ASIDE_SECONDS = 60.0
Row = TypeVar("Row")
Result = TypeVar("Result")


@dataclass
class SetAside:
    """Ids set aside by this instance, with the end (monotonic seconds). Rows do not change.

    ``key`` is the attribute with the id. ``event`` is logged with the attributes ``logged``, by
    their names in the log.
    """

    event: str
    key: str = "id"
    logged: Mapping[str, str] = field(default_factory=dict)
    until: dict[int, float] = field(default_factory=dict)

    def ids(self) -> set[int]:
        """The ids to exclude now."""
        now = time.monotonic()
        self.until = {id: moment for id, moment in self.until.items() if moment > now}
        return set(self.until)

    def ends_in(self) -> float:
        """Seconds until the first of them is not set aside any more."""
        return max(0.0, min(self.until.values()) - time.monotonic())

    def each(
        self,
        tx: Transaction,
        rows: Sequence[Row],
        work: Callable[[Transaction, Sequence[Row]], Result],
        *,
        writes: bool = True,
    ) -> list[Result]:
        """Do ``work`` on all rows; if the data fails, on each alone, and set aside those that fail.

        Returns the results of what succeeded. ``writes``: the work runs statements, so it needs a
        savepoint to undo them.
        """
        if not rows:
            return []
        try:
            with tx.savepoint() if writes else nullcontext():
                return [work(tx, rows)]
        except Exception as e:
            if classify(e) is not Fault.POISON:
                raise
            error = e
        if len(rows) > 1:
            return [result for row in rows for result in self.each(tx, [row], work, writes=writes)]
        self._add(rows[0], error)
        return []

    def _add(self, row: object, error: Exception) -> None:
        self.until[getattr(row, self.key)] = time.monotonic() + SET_ASIDE_SECONDS
        about = {name: getattr(row, attribute) for name, attribute in self.logged.items()}
        log.error(self.event, **about, error=first_line(error))
