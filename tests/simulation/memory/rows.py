"""Row versions, transactions and locks."""

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
    """One write of one row: versions before and after (``None``: absent), and server times."""

    table: str
    before: Values | None
    after: Values | None
    locked_at: datetime
    written_at: datetime


class Row:
    """A row: its committed version, and the version of the one transaction that wrote it.

    ``None`` means deleted.
    """

    __slots__ = ("committed", "locks", "pending", "writer")

    def __init__(self) -> None:
        self.committed: Values | None = None
        self.pending: Values | None = None
        self.writer: Tx | None = None
        self.locks: dict[Tx, str] = {}

    def alter(self, **values: Any) -> None:
        """Change the committed version, as if somebody else had."""
        assert self.committed is not None
        self.committed = {**self.committed, **values}

    def seen_by(self, tx: Tx) -> Values | None:
        """The version that a statement of ``tx`` sees when it begins."""
        return self.pending if self.writer is tx else self.committed

    def holders(self, tx: Tx, mode: str) -> list[Tx]:
        """Other transactions whose locks conflict."""
        return [
            other for other, held in self.locks.items() if other is not tx and not (held == SHARE and mode == SHARE)
        ]


class Tx:
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
        # (table, version before, version after), set at commit.
        self.changes: list[tuple[str, Values | None, Values | None]] = []
        # All writes in order; one row may be written several times.
        self.steps: list[Step] = []
        self.notes: dict[str, Any] = {}

    @property
    def over(self) -> bool:
        """Whether the server has ended the transaction."""
        return self.state in ("ended", "terminated")

    def write(self, table: Any, row: Row, values: Values | None) -> None:
        """Write a new version of ``row``, which must be locked."""
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
        """Wait for the lock and take it.

        Returns ``False`` if ``skip`` is set and another transaction holds the lock.
        """
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
        """Wait until one of ``holders`` has ended. Raises on deadlock."""
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
