"""Errors after the commit of a shard's transaction neither undo it nor report it as failed."""

from contextlib import contextmanager
from types import SimpleNamespace

from retrofill.bus.transaction import shard_transaction, token_transaction
from retrofill.contract.topics import WATCHER


class Engine:
    """An engine whose commits always succeed."""

    committed = 0

    @contextmanager
    def begin(self):
        yield SimpleNamespace(execute=lambda *_: SimpleNamespace(rowcount=1))
        self.committed += 1


def test_a_hook_that_fails_keeps_neither_checks_nor_other_hooks_from_what_follows():
    engine, called = Engine(), []

    def fail():
        raise KeyError("no such driver")

    with shard_transaction(engine, WATCHER, 0, 1, 1000) as tx:
        tx.schedule_check("b-1", 5.0)
        tx.after_commit += [fail, lambda: called.append("second")]
    with token_transaction(engine, WATCHER, 0, 1000) as other:
        other.after_commit += [fail, lambda: called.append("third")]
    assert (engine.committed, called, tx.checks) == (2, ["second", "third"], {"b-1": 5.0})
