"""Sets aside deadlines that cannot be decided, so they do not block their shard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from deadline_watcher.decide import Row
from deadline_watcher.verdicts import apply_verdicts
from retrofill.bus.faults import Fault, classify
from retrofill.bus.transaction import Transaction
from retrofill.errors import first_line

log = structlog.get_logger(__name__)
SET_ASIDE_SECONDS = 60.0


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
        if _judged(tx, rows) is None:
            return
        for row in rows:
            error = _judged(tx, [row])
            if error is not None:
                self.until[row["id"]] = time.monotonic() + SET_ASIDE_SECONDS
                log.error("deadline_set_aside", deadline=row["id"], alert=row["alert"], error=first_line(error))


def _judged(tx: Transaction, rows: Sequence[Row]) -> Exception | None:
    """Judge in a savepoint. Returns an error that the data caused, undone; raises others."""
    outgoing, hooks, checks = len(tx.outgoing), len(tx.after_commit), dict(tx.checks)
    try:
        with tx.conn.begin_nested():
            apply_verdicts(tx, rows)
    except Exception as e:
        if classify(e) is not Fault.POISON:
            raise
        del tx.outgoing[outgoing:], tx.after_commit[hooks:]
        tx.checks = checks
        return e
    return None
