"""Looking at all that is active again every minute, so that a hint that never comes costs a minute, not for ever.

A report that became a dead letter or an event that was lost leaves rows that nobody is told of. All keys are spread over the
minute, in groups that share a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from retrofill.bus.transaction import Transaction

EVERY_SECONDS = 60.0
# So many share a transaction: as many as a pass of the loop takes.
TOGETHER = 50
# Look keys of all active ones of a shard, in the course of the next minute or at once. No id has a line break in it.
ALL_ACTIVE, ALL_NOW = "\nall active", "\nall now"


def check_all_active(tx: Transaction, asked: str, keys: Sequence[str]) -> None:
    """Look at ``keys``: at once for ``ALL_NOW``; for ``ALL_ACTIVE`` over the next minute, and then at all of them again."""
    groups = -(-len(keys) // TOGETHER)
    pause = EVERY_SECONDS / max(groups, 1) if asked == ALL_ACTIVE else 0.0
    for n, key in enumerate(keys):
        tx.schedule_check(key, n // TOGETHER * pause)
    if asked == ALL_ACTIVE:
        tx.schedule_check(ALL_ACTIVE, EVERY_SECONDS)
