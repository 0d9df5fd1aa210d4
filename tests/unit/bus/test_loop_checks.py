"""Checks that share a transaction: a refused group is rechecked key by key; no key is lost."""

import time
from contextlib import nullcontext

import pytest
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from tests.support.offline import acting_as, offline

from retrofill_core.bus.faults import Conflict, Fenced, Poison
from retrofill_core.bus.handler import Handler
from retrofill_core.bus.transaction import NO_EPOCH, Transaction
from retrofill_core.bus.worker.context import Failures, WorkerContext
from retrofill_core.bus.worker.loop import Checks
from retrofill_core.bus.worker.shard import Ownership
from retrofill_core.contract.topics import WATCHER

LOCKED = OperationalError("UPDATE", {}, LockNotAvailable())


class InOneGroup(Handler):
    """Checks all keys together. ``failing(keys)`` returns the exception to raise, or ``None``."""

    def __init__(self, failing):
        self.failing = failing
        self.seen = []

    def group(self, keys):
        return [keys]

    def check(self, tx, keys):
        self.seen.append(list(keys))
        if (error := self.failing(list(keys))) is not None:
            raise error


class Context(WorkerContext):
    """Its transactions have no connection."""

    def transaction(self, shard):
        return nullcontext(Transaction(acting_as(Connection, None), self.service, 0, NO_EPOCH, 1000))


class Played:
    """The checks of a shard, without Postgres."""

    def __init__(self, failing):
        self.handler = InOneGroup(failing)
        context = offline(WATCHER, self.handler, kind=Context)
        self.checks = Checks(context, Failures(context))
        self.shard = context.shards[0]
        self.shard.begin({}, epoch=1)
        self.shard.ownership = Ownership.OWNED
        for key in "abcd":
            self.shard.schedule_check(key, 0.0)


def test_what_lands_is_checked_once_and_together():
    played = Played(lambda keys: None)
    played.checks.run(played.shard)
    assert played.handler.seen == [["a", "b", "c", "d"]]
    assert played.shard.checks == {}


@pytest.mark.parametrize("error", [Conflict("x"), Poison("x"), KeyError("x"), LOCKED])
@pytest.mark.parametrize("bad", "abcd")
def test_a_refused_key_holds_up_no_other(bad, error):
    played = Played(lambda keys: error if bad in keys else None)
    for _ in range(4):
        played.checks.run(played.shard)
    alone = [keys[0] for keys in played.handler.seen if len(keys) == 1]
    assert {"a", "b", "c", "d"} - set(bad) <= set(alone) | {
        k for keys in played.handler.seen for k in keys if bad not in keys
    }
    assert list(played.shard.checks) == [bad]
    assert played.shard.retry_at == 0.0


def test_where_the_database_is_down_all_wait_and_none_is_lost():
    played = Played(lambda keys: OSError("down"))
    played.checks.run(played.shard)
    assert played.handler.seen == [["a", "b", "c", "d"]]
    assert set(played.shard.checks) == set("abcd")
    assert played.shard.retry_at > 0


def test_a_fence_ends_the_work():
    played = Played(lambda keys: Fenced("x"))
    played.checks.run(played.shard)
    assert played.handler.seen == [["a", "b", "c", "d"]]
    assert played.shard.ownership is Ownership.FENCED


def test_a_check_that_conflicts_again_and_again_is_run_less_and_less_often():
    played = Played(lambda keys: Conflict("x") if "a" in keys else None)
    pauses = []
    for _ in range(6):
        played.shard.checks["a"] = 0.0
        played.checks.run(played.shard)
        pauses.append(played.shard.checks["a"] - time.monotonic())
    assert pauses == sorted(pauses)
    assert pauses[-1] > 10 * pauses[0]
    played.handler.failing = lambda keys: None
    played.shard.checks["a"] = 0.0
    played.checks.run(played.shard)
    assert played.shard.conflicting_checks == {}
