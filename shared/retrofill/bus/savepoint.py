"""Work that one bad row must not take the rest of a transaction with it."""

from __future__ import annotations

from collections.abc import Callable

from retrofill.bus.faults import Fault, classify
from retrofill.bus.transaction import Transaction

# How long what the data makes impossible is left alone, before it is tried again.
SET_ASIDE_SECONDS = 60.0


def undone(tx: Transaction, work: Callable[[], object]) -> Exception | None:
    """Do ``work`` in a savepoint. Returns an error that the data caused, with all of it undone; raises others."""
    outgoing, hooks, notifications = len(tx.outgoing), len(tx.after_commit), len(tx.notifications)
    checks = dict(tx.checks)
    try:
        with tx.conn.begin_nested():
            work()
    except Exception as e:
        if classify(e) is not Fault.POISON:
            raise
        del tx.outgoing[outgoing:], tx.after_commit[hooks:], tx.notifications[notifications:]
        tx.checks = checks
        return e
    return None
