"""Rechecks everything active once a minute, so that a lost hint costs a minute at most.

A report that became a dead letter, or a lost event, leaves rows that no message points to. Keys are
spread over the minute, in groups that share a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from retrofill_core.bus.transaction import Transaction

EVERY_SECONDS = 60.0
# Keys per transaction: as many as one pass of the loop checks (``CHECKS_PER_PASS``).
GROUP_SIZE = 50
# Keys for all active rows of a shard, over the next minute or at once. No id contains a line break.
ALL_ACTIVE, ALL_NOW = "\nall active", "\nall now"


def check_all_active(tx: Transaction, asked: str, keys: Sequence[str]) -> None:
    """Check ``keys`` at once for ``ALL_NOW``, spread over every minute for ``ALL_ACTIVE``."""
    groups = -(-len(keys) // GROUP_SIZE)
    pause = EVERY_SECONDS / max(groups, 1) if asked == ALL_ACTIVE else 0.0
    for n, key in enumerate(keys):
        tx.schedule_check(key, n // GROUP_SIZE * pause)
    if asked == ALL_ACTIVE:
        tx.schedule_check(ALL_ACTIVE, EVERY_SECONDS)
