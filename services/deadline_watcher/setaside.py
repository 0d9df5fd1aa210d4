"""Deadlines that cannot be decided: put aside for a while, loudly, so that they stop no other of their shard."""

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
ASIDE_SECONDS = 60.0


@dataclass
class SetAside:
    """What this instance has put aside, until when (monotonic); the rows stay as they are."""

    until: dict[int, float] = field(default_factory=dict)

    def ids(self) -> set[int]:
        """Those to be left out now."""
        now = time.monotonic()
        self.until = {id: moment for id, moment in self.until.items() if moment > now}
        return set(self.until)

    def judge(self, tx: Transaction, rows: Sequence[Row]) -> None:
        """Judge a batch; where it cannot be applied, one by one, and put aside which cannot."""
        if _judged(tx, rows) is None:
            return
        for row in rows:
            error = _judged(tx, [row])
            if error is not None:
                self.until[row["id"]] = time.monotonic() + ASIDE_SECONDS
                log.error("deadline_set_aside", deadline=row["id"], alert=row["alert"], error=first_line(error))


def _judged(tx: Transaction, rows: Sequence[Row]) -> Exception | None:
    """Judge in a savepoint; what the data itself made impossible, after undoing it. All else is raised."""
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
