"""A shard's transaction is committed if it wrote something. Errors after the commit neither undo it
nor report it as failed.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    create_engine,
    delete,
    event,
    insert,
    select,
    text,
    update,
)
from tests.support.offline import acting_as

from retrofill_core.bus.envelope import Record
from retrofill_core.bus.transaction import Move, move_offsets, shard_transaction, token_transaction
from retrofill_core.contract.pipelines import PipelineRemoved
from retrofill_core.contract.topics import WATCHER, Topic
from retrofill_core.store import outbox
from retrofill_core.store.engine import count_write, make_engine, writes
from retrofill_core.store.tables import run

EVENT = PipelineRemoved(pipeline="p")
RECORD = Record(Topic.PIPELINES, 0, 5, b"p", b"{", {}, (), 0)
QUERIES = {
    "query": select(run.c.id),
    "row lock": select(run.c.id).with_for_update(key_share=True),
    "union": select(run.c.id).union_all(select(run.c.id)),
}
WRITES = {
    "insert": insert(run).values(id=1),
    "update": update(run).values(state="queued"),
    "update with rows": update(run).values(state="queued").returning(run.c.id),
    "delete": delete(run),
    "text": text("SELECT 1"),
}


class Recording:
    """A pooled connection without a server. ``ended`` says how each transaction ended."""

    def __init__(self):
        self.info = {}
        self.ended = []

    def execute(self, statement, *_):
        count_write(acting_as(Connection, self), statement)
        return SimpleNamespace(rowcount=1)

    def commit(self):
        self.ended.append("commit")

    def rollback(self):
        self.ended.append("rollback")


class Engine:
    """An engine with one connection, whose commits always succeed."""

    def __init__(self):
        self.conn = Recording()

    @contextmanager
    def connect(self):
        yield self.conn

    @contextmanager
    def begin(self):
        yield self.conn
        self.conn.commit()

    @property
    def ended(self):
        return self.conn.ended


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def announced(monkeypatch):
    """The notifications sent."""
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr("retrofill_core.bus.transaction.announce", sent.extend)
    return sent


def transaction(engine):
    return shard_transaction(engine, WATCHER, 0, 1, 1000)


def test_a_hook_that_fails_keeps_neither_checks_nor_other_hooks_from_what_follows(engine):
    called = []

    def fail():
        raise KeyError("no such driver")

    with transaction(engine) as tx:
        tx.conn.execute(WRITES["update"])
        tx.schedule_check("b-1", 5.0)
        tx.after_commit += [fail, lambda: called.append("second")]
    with token_transaction(engine, WATCHER, 0, 1000) as other:
        other.after_commit += [fail, lambda: called.append("third")]
    assert (engine.ended, called, tx.checks) == (["commit"] * 2, ["second", "third"], {"b-1": 5.0})


# what is committed


@pytest.mark.parametrize("statement", QUERIES.values(), ids=QUERIES)
def test_what_only_reads_and_locks_is_rolled_back(engine, statement):
    with transaction(engine) as tx:
        tx.conn.execute(statement)
    assert engine.ended == ["rollback"]


@pytest.mark.parametrize("statement", WRITES.values(), ids=WRITES)
def test_what_may_have_written_is_committed(engine, statement):
    with transaction(engine) as tx:
        tx.conn.execute(statement)
        tx.conn.execute(QUERIES["query"])
    assert engine.ended == ["commit"]


def test_an_event_or_a_moved_offset_is_committed(engine):
    with transaction(engine) as tx:
        tx.emit(Topic.PIPELINE_EVENTS, "p", EVENT, linger=True)
    with transaction(engine) as tx:
        move_offsets(tx.conn, WATCHER, 0, {"t": Move("t", 1, 2)})
    with transaction(engine) as tx:
        move_offsets(tx.conn, WATCHER, 0, {"t": Move("t", 2, 2)})
    assert engine.ended == ["commit", "commit", "rollback"]


def test_what_the_connection_wrote_before_does_not_count(engine):
    for statement in (WRITES["insert"], QUERIES["query"], WRITES["delete"], QUERIES["query"]):
        with transaction(engine) as tx:
            tx.conn.execute(statement)
    assert engine.ended == ["commit", "rollback"] * 2


def test_what_is_rolled_back_still_schedules_calls_and_notifies(engine, announced):
    called = []
    with transaction(engine) as tx:
        tx.schedule_check("b-1")
        tx.notify("c", [7])
        tx.after_commit.append(lambda: called.append("hook"))
    assert (engine.ended, called, announced, tx.checks) == (["rollback"], ["hook"], [("c", "7")], {"b-1": 0.0})


def test_what_raises_is_not_committed_and_nothing_follows(engine, announced):
    called = []
    with pytest.raises(KeyError), transaction(engine) as tx:
        tx.emit(Topic.PIPELINE_EVENTS, "p", EVENT)
        tx.after_commit.append(lambda: called.append("hook"))
        raise KeyError("x")
    assert "commit" not in engine.ended
    assert called == announced == []


def test_a_real_engine_counts_whatever_way_a_statement_is_sent():
    engine = create_engine("sqlite://")
    event.listen(engine, "before_execute", count_write)
    table = Table("t", MetaData(), Column("id", Integer))
    with engine.connect() as conn:
        table.create(conn)
        before = writes(conn)
        conn.execute(select(table)).all()
        conn.scalars(select(table.c.id).union(select(table.c.id))).all()
        assert writes(conn) == before
        assert conn.scalar(insert(table).values(id=1).returning(table.c.id)) == 1
        conn.execute(insert(table), [{"id": 2}, {"id": 3}])
        conn.execute(text("SELECT 1"))
        assert writes(conn) == before + 3
    assert event.contains(make_engine("postgresql://nowhere/x", "test"), "before_execute", count_write)


# when the relay publishes


@pytest.mark.parametrize(
    ("lingers", "payload"), [([True, True], outbox.LATER), ([True, False], ""), ([False, True], "")]
)
def test_the_relay_may_wait_if_every_event_may(engine, announced, lingers, payload):
    with transaction(engine) as tx:
        for linger in lingers:
            tx.emit(Topic.PIPELINE_EVENTS, "p", EVENT, linger=linger)
    assert announced == [(outbox.channel(WATCHER.package), payload)]


@pytest.mark.parametrize(
    "publish",
    [
        lambda tx: tx.emit(Topic.PIPELINE_EVENTS, "p", EVENT),
        lambda tx: tx.republish(RECORD, "p", "ce"),
        lambda tx: tx.dead_letter(RECORD, "why"),
        lambda tx: tx.dead_letter_of(Topic.PIPELINES, "p", EVENT, "why"),
    ],
    ids=["event", "misplaced", "dead letter", "dead letter of an event"],
)
def test_nothing_waits_unless_it_is_said(engine, announced, publish):
    with transaction(engine) as tx:
        tx.emit(Topic.PIPELINE_EVENTS, "p", EVENT, linger=True)
        publish(tx)
    assert announced == [(outbox.channel(WATCHER.package), "")]
