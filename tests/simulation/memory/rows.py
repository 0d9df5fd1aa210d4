"""Versions of rows, transactions and the locks that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.simulation.memory import errors

Values = dict[str, Any]

SHARE, NO_KEY_UPDATE, UPDATE = "share", "no key update", "update"


@dataclass(frozen=True, slots=True)
class Step:
    """One write of one row: the version before, the version after (``None``: not there), and when by the server's clock."""

    table: str
    before: Values | None
    after: Values | None
    locked_at: datetime
    written_at: datetime


class Row:
    """A row: what is committed, and what the one transaction that has written it made of it (``None``: deleted)."""

    __slots__ = ("committed", "locks", "pending", "writer")

    def __init__(self) -> None:
        self.committed: Values | None = None
        self.pending: Values | None = None
        self.writer: Tx | None = None
        self.locks: dict[Tx, str] = {}

    def seen_by(self, tx: Tx) -> Values | None:
        """The version that a statement of ``tx`` sees when it begins."""
        return self.pending if self.writer is tx else self.committed

    def holders(self, tx: Tx, mode: str) -> list[Tx]:
        """Others whose locks are in the way."""
        return [
            other for other, held in self.locks.items() if other is not tx and not (held == SHARE and mode == SHARE)
        ]


class Tx:
    """One transaction."""

    def __init__(self, database: Any, who: str, began: float) -> None:
        self.database = database
        self.who = who
        self.last_active = self.began = began
        self.began_at: datetime = database.now()
        self.lock_until: float | None = None
        self.state = "active"  # or: failed, ended, terminated
        self.undo: list[Callable[[], None]] = []
        self.written: dict[tuple[Any, Row], None] = {}
        self.locked: dict[Row, datetime] = {}
        self.advisory: set[tuple[int, int]] = set()
        self.notifications: dict[tuple[str, str], None] = {}
        self.waits_for: list[Tx] = []
        # With the commit: table, the version before, the version after.
        self.changes: list[tuple[str, Values | None, Values | None]] = []
        # Every write in its order: one row may take several steps.
        self.steps: list[Step] = []
        self.notes: dict[str, Any] = {}

    @property
    def over(self) -> bool:
        """Whether the server has ended it."""
        return self.state in ("ended", "terminated")

    def write(self, table: Any, row: Row, values: Values | None) -> None:
        """Make ``values`` the version of ``row``; its lock is held by now."""
        before = (row.writer, row.pending)
        now = self.database.now()
        self.steps.append(Step(table.name, row.seen_by(self), values, self.locked.get(row, now), now))

        def undo() -> None:
            row.writer, row.pending = before
            self.steps.pop()

        self.undo.append(undo)
        self.written[table, row] = None
        row.writer, row.pending = self, values

    def lock(self, row: Row, mode: str, *, skip: bool = False) -> bool:
        """Have the lock, after waiting for it; ``False`` where ``skip`` and somebody else has it."""
        while holders := row.holders(self, mode):
            if skip:
                return False
            for hook in self.database.on_wait:
                hook(self, row)
            self.wait(holders)
        self.lock_until = None
        held = row.locks.get(self)
        if held is None or _RANK[mode] > _RANK[held]:
            row.locks[self] = mode
            self.locked.setdefault(row, self.database.now())
        return True

    def wait(self, holders: Iterable[Tx]) -> None:
        """Until one of ``holders`` has ended. Raises for a deadlock."""
        self.waits_for = list(holders)
        try:
            if self._waits_for_itself():
                raise errors.deadlock()
            self.database.wait_for_end(self)
        finally:
            self.waits_for = []

    def _waits_for_itself(self) -> bool:
        seen: set[Tx] = set()
        left = list(self.waits_for)
        while left:
            tx = left.pop()
            if tx is self:
                return True
            if tx not in seen:
                seen.add(tx)
                left += tx.waits_for
        return False


_RANK = {SHARE: 0, NO_KEY_UPDATE: 1, UPDATE: 2}
