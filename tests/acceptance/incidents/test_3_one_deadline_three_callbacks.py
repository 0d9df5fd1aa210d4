"""Incident: several replicas found the same missed deadline, and each of them paged the on-call
engineer.

Here a deadline has one owner at a time, ends in one guarded update, and has one callback row that
is claimed once. Replicas may come and go, or stop in the middle and wake up late: there is still
one event and one call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import date, timedelta

import psycopg
import pytest
from tests.support.definitions import alert, daily
from tests.support.installation import Installation, until
from tests.support.replica import Replica

from retrofill_core.contract.topics import Topic
from retrofill_core.store import callbacks
from retrofill_core.store.engine import make_engine

DEADLINES = 200
REPLICAS = 3
SERVICES = ("deadline_watcher", "callback_runner")
CALLBACKS = '{"page": "tests.support.called:append_line"}'
FIRST_DAY = date(2020, 1, 1)
# The replicas that wait for a lock; a replica's name ends with its pid.
WAITING = """
SELECT application_name AS name FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'deadline-watcher-%'
"""


def arm(stack: Installation, deadlines: int, seconds: float) -> None:
    """Create ``deadlines`` deadlines, all due in ``seconds``, whose callback appends a line to a
    file.
    """
    path = str(stack.settings.home / "calls")
    late = alert("late", "RUN_QUEUED_AT", seconds, callback="page", kwargs={"path": path})
    stack.apply(daily(deadlines=[late]))
    last = FIRST_DAY + timedelta(days=deadlines - 1)
    stack.outcome(stack.request("p", FIRST_DAY.isoformat(), last.isoformat()))


class HeldRuns:
    """Locks all runs, in parts. Watchers skip the locked deadlines and retry until a part is
    released.
    """

    def __init__(self, stack: Installation, parts: int) -> None:
        self._stack = stack
        self._held: list[tuple[list[int], ExitStack]] = []
        for part in range(parts):
            with ExitStack() as exits:
                session = exits.enter_context(stack.session())
                rows = session.execute("SELECT id FROM run WHERE position %% %s = %s FOR UPDATE", [parts, part])
                self._held.append(([row[0] for row in rows], exits.pop_all()))
        self.free = 0

    def one_deadline(self) -> int:
        """A deadline of the part that is released next."""
        last = "SELECT max(id) FROM deadline WHERE run_id = ANY(%s)"
        id: int = self._stack.value(last, self._held[-1][0])
        return id

    def let_go(self) -> None:
        """Release the next part. ``free`` counts the released runs."""
        ids, session = self._held.pop()
        self.free += len(ids)
        session.close()

    def close(self) -> None:
        """Release all remaining parts, for when the test has failed."""
        while self._held:
            self.let_go()


class OnCall:
    """Three watchers, three runners, and 200 due deadlines whose runs are locked."""

    def __init__(self, stack: Installation) -> None:
        self.stack = stack
        stack.start("backfill-planner", wait=False)
        self.watchers = [self.watcher(wait=False) for _ in range(REPLICAS)]
        self.runners = [self.runner(wait=False) for _ in range(REPLICAS)]
        for service in SERVICES:
            self._wait_none(f"{service}_shard", "epoch = 0")
        arm(stack, DEADLINES, seconds=3)
        self.held = HeldRuns(stack, parts=6)
        assert stack.value("SELECT count(*) FROM deadline WHERE state = 'armed'") == DEADLINES
        until(lambda: bool(stack.value("SELECT bool_and(due_at < now()) FROM deadline")), "all are due")

    def watcher(self, *, wait: bool = True) -> Replica:
        return self.stack.start("deadline-watcher", wait=wait)

    def runner(self, *, wait: bool = True) -> Replica:
        return self.stack.start("callback-runner", wait=wait, RETROFILL_CALLBACKS=CALLBACKS)

    def wait_called(self) -> None:
        """Wait until the callbacks of all released runs have succeeded."""
        count = "SELECT count(*) FROM callback WHERE state = 'succeeded'"
        states = "SELECT state, attempts, count(*) FROM callback GROUP BY 1, 2"
        until(
            lambda: bool(self.stack.value(count) == self.held.free),
            f"{self.held.free} were called",
            lambda: str(self.stack.query(states)),
        )

    def epochs(self, service: str) -> int:
        """How many times the service's shards have been taken over."""
        return int(self.stack.value(f"SELECT sum(epoch) FROM {service}_shard"))

    def one_more(self, service: str, start: Callable[[], Replica]) -> Replica:
        """Start a replica and wait until it has taken over shards."""
        before = self.epochs(service)
        replica = start()
        until(lambda: self.epochs(service) > before, f"another {service} owns shards")
        return replica

    def check_each_once(self) -> None:
        """Assert one event, row, request, call and result for each deadline."""
        self.stack.wait_published()
        once = Counter(row["id"] for row in self.stack.query("SELECT id FROM deadline WHERE state = 'missed'"))
        assert once.total() == DEADLINES
        for topic in (Topic.DEADLINE_MISSED, Topic.CALLBACK_REQUESTS, Topic.CALLBACK_EVENTS):
            assert Counter(event.body["deadline_id"] for event in self.stack.events(topic)) == once, topic
        rows = self.stack.query("SELECT deadline_id, state, attempts FROM callback")
        assert Counter(row["deadline_id"] for row in rows) == once
        assert {(row["state"], row["attempts"]) for row in rows} == {("succeeded", 1)}
        calls = map(json.loads, (self.stack.settings.home / "calls").read_text().splitlines())
        assert Counter(call["deadline_id"] for call in calls) == once
        assert self.stack.events(Topic.DEAD_LETTERS) == []

    def _wait_none(self, table: str, condition: str) -> None:
        count = f"SELECT count(*) FROM {table} WHERE {condition}"
        until(lambda: bool(self.stack.value(count) == 0), f"{table} has no row where {condition}")


def come_and_go(on_call: OnCall) -> None:
    """Add and remove a watcher and a runner, and release a part of the deadlines during each of the
    four rebalances.
    """
    watcher = on_call.one_more("deadline_watcher", on_call.watcher)
    on_call.held.let_go()
    runner = on_call.one_more("callback_runner", on_call.runner)
    on_call.held.let_go()
    watcher.stop()
    on_call.held.let_go()
    # Stopping a runner during a call would repeat that call, so wait until none is in progress.
    on_call.wait_called()
    runner.stop()
    on_call.held.let_go()
    on_call.wait_called()


def stop_in_the_middle(on_call: OnCall, somebody: psycopg.Connection) -> Replica:
    """Freeze a watcher inside the transaction that ends a batch of deadlines. Returns once its
    successor waits for that transaction.
    """
    stack, deadline = on_call.stack, on_call.held.one_deadline()
    somebody.execute("SELECT 1 FROM deadline WHERE id = %s FOR UPDATE", [deadline])
    on_call.held.let_go()
    until(lambda: bool(stack.query(WAITING)), "a watcher is in the middle of its batch")
    ((name,),) = [row.values() for row in stack.query(WAITING)]
    (watcher,) = [each for each in on_call.watchers if name.endswith(f"-{each.process.pid}")]
    watcher.freeze()

    # A shard's transactions are serialized: the successor waits for this one only.
    until(lambda: any(row["name"] != name for row in stack.query(WAITING)), "its successor waits for its transaction")
    return watcher


def wake_up_late(on_call: OnCall) -> None:
    """A watcher wakes up long after its successor has done its work."""
    with on_call.stack.session() as somebody:
        stopped = stop_in_the_middle(on_call, somebody)
    # ``idle_in_transaction_session_timeout`` has released its locks.
    on_call.wait_called()
    stopped.thaw()
    until(lambda: "check_waits" in stopped.said() or "fenced" in stopped.said(), "it finds its transaction gone")


def wake_up_beside_the_successor(on_call: OnCall) -> None:
    """A watcher wakes up while its successor waits for its transaction, and completes it."""
    with on_call.stack.session() as somebody:
        stop_in_the_middle(on_call, somebody).thaw()
    on_call.wait_called()


@pytest.mark.long
def test_200_deadlines_fire_once_whoever_comes_goes_and_wakes_up(installation: Installation) -> None:
    on_call = OnCall(installation)
    with closing(on_call.held):
        come_and_go(on_call)
        wake_up_late(on_call)
        wake_up_beside_the_successor(on_call)
    on_call.check_each_once()
    for replica in (*on_call.watchers, *on_call.runners):
        assert replica.process.poll() is None


def test_a_claim_that_was_taken_back_records_nothing(installation: Installation) -> None:
    installation.start("backfill-planner", wait=False)
    installation.start("deadline-watcher", wait=False)
    arm(installation, 1, seconds=1)
    until(lambda: bool(installation.query("SELECT 1 FROM callback")), "the deadline was missed")
    id, shard = installation.query("SELECT deadline_id, shard FROM callback")[0].values()
    engine = make_engine(installation.settings.dsn_of("callback-runner"), "test")
    with engine.begin() as conn:
        assert callbacks.claim(conn, [{"deadline_id": id, "token": "first", "attempts": 1}], 0) == {id}
        # A callback is claimed once at a time, even by the same runner.
        assert callbacks.claim(conn, [{"deadline_id": id, "token": "other", "attempts": 1}], 9) == set()
    with engine.begin() as conn:
        (lapsed,) = callbacks.lock_lapsed(conn, shard, [])
        assert callbacks.try_again(conn, id, lapsed.token, "its runner died", 0, 1)
        assert callbacks.claim(conn, [{"deadline_id": id, "token": "second", "attempts": 2}], 9) == {id}
    assert not callbacks.renew(engine, id, "first", 9)
    with engine.begin() as conn:
        assert not callbacks.succeed(conn, id, "first")
        assert not callbacks.fail(conn, id, "first", "late", 0)
        assert not callbacks.try_again(conn, id, "first", "late", 0, 0)
        assert callbacks.succeed(conn, id, "second")
        assert not callbacks.try_again(conn, id, "second", "twice", 0, 0)
    engine.dispose()
    assert installation.query("SELECT state, attempts FROM callback") == [{"state": "succeeded", "attempts": 2}]
