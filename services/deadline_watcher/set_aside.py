"""Sets aside deadlines that cannot be decided, so they do not block their shard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from deadline_watcher.decide import Row
from deadline_watcher.verdicts import apply_verdicts
from retrofill.bus.savepoint import SET_ASIDE_SECONDS, undone
from retrofill.bus.transaction import Transaction
from retrofill.errors import first_line

log = structlog.get_logger(__name__)


@dataclass
class SetAside:
    """Ids set aside by this instance, with the end (monotonic seconds). Rows do not change."""

    until: dict[int, float] = field(default_factory=dict)

    def ids(self) -> set[int]:
        """The ids to exclude now."""
        now = time.monotonic()
        self.until = {id: moment for id, moment in self.until.items() if moment > now}
        return set(self.until)

    def judge(self, tx: Transaction, rows: Sequence[Row]) -> None:
        """Judge a batch; if it fails, judge one by one and set aside those that fail."""
        if undone(tx, lambda: apply_verdicts(tx, rows)) is None:
            return
        for row in rows:
            error = undone(tx, lambda row=row: apply_verdicts(tx, [row]))  # type: ignore[misc]
            if error is not None:
                self.until[row["id"]] = time.monotonic() + SET_ASIDE_SECONDS
                log.error("deadline_set_aside", deadline=row["id"], alert=row["alert"], error=first_line(error))
