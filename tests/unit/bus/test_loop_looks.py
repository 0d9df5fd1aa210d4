"""Looks that share a transaction: one that is refused is done again key by key, and no key is lost."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from retrofill.bus.faults import Conflict, Fenced, Poison
from retrofill.bus.handler import QuietHandler
from retrofill.bus.inbox import Inbox
from retrofill.bus.loop import Loop
from retrofill.bus.shard import Ownership
from retrofill.bus.topics import WATCHER


class Together(QuietHandler):
    """Looks at all keys together; ``failing`` says what looking at some raises, if anything."""

    def __init__(self, failing):
        self.failing = failing
        self.seen = []

    def together(self, keys):
        return [keys]

    def look_at_all(self, tx, keys):
        self.seen.append(list(keys))
        if (error := self.failing(list(keys))) is not None:
            raise error


class Played(Loop):
    """The loop without Postgres."""

    def __init__(self, failing):
        settings = SimpleNamespace(batch_messages=10, max_message_bytes=1000)
        self.handler = Together(failing)
        poller = SimpleNamespace(handled=lambda records: None, release=lambda *_: None)
        super().__init__(settings, WATCHER, "i", None, Inbox(), poller, self.handler, None, 4)
        self.shard = self._shards[0]
        self.shard.begin({}, epoch=1)
        self.shard.ownership = Ownership.OWNED
        for key in "abcd":
            self.shard.look_at(key, 0.0)

    @contextmanager
    def _transaction(self, shard):
        yield SimpleNamespace(looks={})


def test_what_lands_is_looked_at_once_and_together():
    played = Played(lambda keys: None)
    played._run_looks(played.shard)
    assert played.handler.seen == [["a", "b", "c", "d"]]
    assert played.shard.looks == {}


@pytest.mark.parametrize("error", [Conflict("x"), Poison("x"), KeyError("x")])
@pytest.mark.parametrize("bad", "abcd")
def test_a_refused_one_keeps_nobody_else_from_being_looked_at(bad, error):
    played = Played(lambda keys: error if bad in keys else None)
    for _ in range(4):
        played._run_looks(played.shard)
    alone = [keys[0] for keys in played.handler.seen if len(keys) == 1]
    assert {"a", "b", "c", "d"} - set(bad) <= set(alone) | {
        k for keys in played.handler.seen for k in keys if bad not in keys
    }
    assert list(played.shard.looks) == [bad]


def test_where_the_database_is_down_all_wait_and_none_is_lost():
    played = Played(lambda keys: OSError("down"))
    played._run_looks(played.shard)
    assert played.handler.seen == [["a", "b", "c", "d"]]
    assert set(played.shard.looks) == set("abcd")
    assert played.shard.retry_at > 0


def test_a_fence_ends_the_work():
    played = Played(lambda keys: Fenced("x"))
    played._run_looks(played.shard)
    assert played.handler.seen == [["a", "b", "c", "d"]]
    assert played.shard.ownership is Ownership.FENCED
