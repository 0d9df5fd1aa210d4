"""Sets aside rows that a check cannot handle, so they do not block their shard."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.bus.faults import Fault, classify
from retrofill_core.bus.transaction import Transaction

log = get_log(__name__)
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
