"""The statements of the hot paths are built once: building one takes longer than executing it."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from sqlalchemy.exc import DBAPIError, NoResultFound
from tests.support.definitions import alert
from tests.support.rows import a_run
from tests.support.sessions import MemoryStore, rollback

from retrofill_core.bus.faults import Fenced, Poison
from retrofill_core.bus.transaction import Move, lock_shard, move_offsets, update_shard
from retrofill_core.contract.topics import RUN_STARTER
from retrofill_core.deadlines import Subject, insert_deadlines, last_runtimes
from retrofill_core.domain.deadline import Arming, DeadlineAlert, DeadlineState
from retrofill_core.store import (
    attempts,
    backfills,
    callbacks,
    claims,
    conditions,
    deadlines,
    digests,
    giving_way,
    hosts,
    launches,
    listed,
    outbox,
    pipelines,
    places,
    progress,
    receivers,
    run_commands,
    runs,
    sql,
)
from retrofill_core.store.tables import SERVICE_TABLES
from retrofill_core.store.transition import FromNow, IfNull
from run_starter.definitions import Definitions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWN = SERVICE_TABLES[RUN_STARTER.package]
KIND = digests.DigestKind("p", "a", "t", 5.0)
NEW = attempts.NewAttempt("b", 1, "each", 0, 1, 1, 1, {}, "h", 1, 1)
ALERT = DeadlineAlert.model_validate(alert("x", "RUN_QUEUED_AT", 1, callback="page"))
SUBJECTS = [Subject(None, Arming(NOW, DeadlineState.ARMED))]
CALL = callbacks.NewCallback(1, 0, "f", "function", {}, {}, {}, "p", NOW)
OUT = outbox.Outgoing("t", b"k", b"v", ())
# Each works on a database without rows.
HOT = {
    "shard": lambda conn: update_shard(conn, RUN_STARTER, 0, 0, {"epoch": 0}),
    "shard's lock": lambda conn: lock_shard(conn, RUN_STARTER, 0),
    "offsets": lambda conn: move_offsets(conn, RUN_STARTER, 0, {"t": Move("t", 1, 2)}),
    "time": sql.database_now,
    "runs locked": lambda conn: runs.lock(conn, [1]),
    "failed runs": lambda conn: run_commands.failed_runs(conn, "b", None, after=-1, most=1),
    "failed runs among": lambda conn: run_commands.failed_runs(conn, "b", [1], after=-1, most=1),
    "runs replaced": lambda conn: run_commands.replace_failed(conn, [run_commands.RetriableRun(1, 0, NOW)], NOW),
    "deadlines of replaced runs": lambda conn: run_commands.armed_deadlines(conn, [1], 1),
    "runs of attempts locked": lambda conn: runs.lock(conn, [1], live_of=[1]),
    "run moved": lambda conn: runs.move(conn, "running", [{"id": 1, "attempt_id": 1}], {"started_at": IfNull(NOW)}),
    "to publish": lambda conn: runs.backfills_to_publish(conn, 0),
    "attempts inserted": lambda conn: attempts.insert_all(conn, [NEW], [1], NOW, 1.0),
    "earlier attempts": lambda conn: launches.earlier(conn, [("b", [a_run()])]),
    "unpublished attempts": lambda conn: launches.unpublished(conn, [("b", [a_run()])]),
    "launch": lambda conn: launches.given(conn, 1),
    "accepted runs": lambda conn: launches.accepted_of(conn, [1]),
    "free seats": lambda conn: hosts.lock_free(conn, [1], 0, "default", ["pool"], 1),
    "seats freed": lambda conn: hosts.free(conn, {1: True}),
    "unacknowledged": lambda conn: hosts.unacknowledged(conn, [1]),
    "attempts of silent hosts": lambda conn: hosts.silent(conn, [1]),
    "shard waits": lambda conn: giving_way.wait_for_seat(
        conn, 0, giving_way.SeatKind("default", False), giving_way.Rank(1, NOW), 1.0
    ),
    "shard waits no more": lambda conn: giving_way.wait_for_no_seat(conn, 0, giving_way.SeatKind("default", False)),
    "writes undecided": lambda conn: places.undecided(conn, ["w"]),
    "who writes": lambda conn: places.held(conn, ["w"]),
    "who waits to write": lambda conn: places.waiting(conn, ["w"]),
    "backfill waits to write": lambda conn: places.wait(conn, ["w"], "b", NOW, 1.0),
    "backfill waits to write no more": lambda conn: places.wait_no_more(conn, ["b"]),
    "writes": lambda conn: places.take(conn, ["w"], 1),
    "host": lambda conn: hosts.register(conn, "h", 2, 1.0, submits=True, note=None),
    "host renewed": lambda conn: hosts.renew(conn, 1, 1.0, submits=True, note="n"),
    "seats": lambda conn: hosts.seats_of(conn, [1]),
    "acknowledged": lambda conn: hosts.acknowledge(conn, 1, 1),
    "seats made again": lambda conn: hosts.make_seats(conn, 1, [1]),
    "seat warmed": lambda conn: hosts.set_warm(conn, 1, 1, warm=True),
    "seats withdrawn": lambda conn: hosts.withdraw(conn, 1),
    "attempts locked": lambda conn: attempts.lock(conn, [1]),
    "attempt moved": lambda conn: attempts.move(conn, "running", [{"id": 1}], {"began_at": NOW}),
    "leases": lambda conn: attempts.leases(conn, 0),
    "leases renewed by a host": lambda conn: attempts.renew(conn, [1], [1]),
    "leases extended": lambda conn: attempts.extend_leases(conn, {1: NOW}),
    "runs named by date": lambda conn: run_commands.starting_within(conn, "b", [(NOW, NOW)], 1),
    "runs named by id": lambda conn: run_commands.with_ids(conn, "b", [1], after=0),
    "cancels of runs": lambda conn: run_commands.request_cancels(conn, "b", [], None),
    "cancelled runs": lambda conn: run_commands.cancelled_among(conn, ["b"], [1]),
    "queued runs to cancel": lambda conn: run_commands.queued_to_cancel(conn, ["b"], 1),
    "release requested": lambda conn: run_commands.mark_release_requested(conn, ["b"]),
    "backfills with cancels": lambda conn: run_commands.backfills_with_cancels(conn, 0),
    "cancel requested": lambda conn: attempts.mark_cancel_requested(conn, "b"),
    "lease left": lambda conn: attempts.lease_left(conn, 1, 1),
    "accepted": lambda conn: attempts.accepted(conn, 1, [1]),
    "hosted attempts": lambda conn: attempts.to_be_ended(conn, [1]),
    "tasks created": lambda conn: runs.create_tasks(conn, []),
    "tasks": lambda conn: runs.task_states(conn, [(1, 1)]),
    "open tasks": lambda conn: runs.cancel_open_tasks(conn, [(1, 1)], NOW),
    "pipelines locked": lambda conn: claims.lock_pipelines(conn, [1]),
    "slots": lambda conn: claims.taken_slots(conn, [1]),
    "claimants": lambda conn: claims.claimants(conn, 0, {1: 1}, ["b"]),
    "server locked": lambda conn: claims.lock_suspects(conn, "default"),
    "suspects": lambda conn: claims.next_suspects(conn, {"b": 1}),
    "pipelines with suspects": lambda conn: claims.pipelines_with_suspects(conn, 0),
    "all queued runs": lambda conn: runs.queued(conn, "b", 1),
    "announced": lambda conn: progress.announced(conn, ["b"]),
    "counts of runs": lambda conn: progress.counts(conn, ["b"]),
    "what attempts took": lambda conn: progress.measured(conn, {"b": 1}, NOW),
    "durations of a pipeline": lambda conn: progress.history(conn, 1, NOW),
    "costs": lambda conn: progress.costs(conn, ["b"]),
    "progress announced": lambda conn: progress.put(conn, [{"backfill_id": "b", "sequence": 1, "runs": {}}]),
    "progress announced again": lambda conn: progress.put(conn, [{"backfill_id": "b", "sequence": 2, "runs": {}}]),
    "durations": lambda conn: progress.last_attempts(conn, [1]),
    "queued runs": lambda conn: claims.next_queued(conn, {"b": 1}),
    "anything staged": lambda conn: claims.to_publish(conn, {"b": 1}),
    "staged runs": lambda conn: claims.staged(conn, {"b": (1, 1)}, [2]),
    "definitions": lambda conn: Definitions().of(conn, ["b"]),
    "pipelines": lambda conn: pipelines.find(conn, ["p"]),
    "codes": lambda conn: pipelines.codes(conn, [1]),
    "backfill locked": lambda conn: backfills.lock(conn, "b", wait=False),
    "backfills locked": lambda conn: backfills.lock_free(conn, ["b"]),
    "backfill moved": lambda conn: backfills.move(conn, "b", "running", "paused", {"resumed_at": FromNow()}),
    "active backfills": lambda conn: backfills.active(conn, 0),
    "still active": lambda conn: backfills.still_active(conn, ["b"]),
    "to be decided": lambda conn: backfills.to_be_decided(conn, ["b"]),
    "progress": lambda conn: backfills.progress(conn, "b"),
    "counts": lambda conn: backfills.run_counts(conn, "b"),
    "failures": lambda conn: conditions.count_failed(conn, "b"),
    "outbox filled": lambda conn: outbox.insert_rows(conn, OWN, [OUT]),
    "outbox": lambda conn: outbox.take(conn, OWN, 1, 1, ["t"]),
    "deadlines armed": lambda conn: insert_deadlines(conn, "b", "p", ALERT, SUBJECTS, 1),
    "runtimes": lambda conn: last_runtimes(conn, 1, 5),
    "deadlines due": lambda conn: deadlines.lock_due(conn, 0, [1]),
    "deadlines named": lambda conn: deadlines.lock_named(conn, 0, [1]),
    "armed deadlines": lambda conn: deadlines.armed(conn, 0, [1]),
    "sweep": lambda conn: deadlines.left_armed(conn, 0, deadlines.START),
    "late": lambda conn: deadlines.late(conn, 0, [1]),
    "next moment": lambda conn: deadlines.next_moment(conn, 0, [1]),
    "deadlines of runs": lambda conn: deadlines.open_of_runs(conn, [1]),
    "deadlines of tasks": lambda conn: deadlines.open_of_tasks(conn, [(1, "t")]),
    "deadlines of a backfill": lambda conn: deadlines.open_of_backfill(conn, "b"),
    "deadline ended": lambda conn: deadlines.end(conn, DeadlineState.MISSED, [{"id": 1}], NOW),
    "deadline recovered": lambda conn: deadlines.recover(conn, {1: NOW}),
    "callbacks created": lambda conn: callbacks.insert_all(conn, [CALL]),
    "digest": lambda conn: digests.join(conn, KIND, 1, 0),
    "digests due": lambda conn: digests.lock_due(conn, 0),
    "digest closed": lambda conn: digests.close(conn, 1, NOW),
    "digests held": lambda conn: digests.hold_open(conn, [1]),
    "ids of callbacks": lambda conn: listed.next_ids(conn, 2),
    "callbacks that collect": lambda conn: listed.collecting(conn, [("b", 0)]),
    "failed runs added": lambda conn: listed.add_runs(conn, [(1, 0, 1)]),
    "failed runs of a callback": lambda conn: listed.failed_runs(conn, 1, 10),
    "failed runs counted": lambda conn: listed.count_failed_runs(conn, 1),
    "callback closed": lambda conn: listed.close(conn, 1, {}, {}),
    "callbacks due": lambda conn: callbacks.due(conn, 0, [], 1),
    "next try": lambda conn: callbacks.next_try(conn, 0, []),
    "receivers down": lambda conn: receivers.waiting(conn, 0),
    "callbacks given up": lambda conn: receivers.expired(conn, 0, 1.0, 1),
    "receivers to probe": lambda conn: receivers.lock_to_probe(conn, ["r"]),
    "probe": lambda conn: receivers.probe(conn, {"r": 1}),
    "tries of a receiver": lambda conn: receivers.tries_of(conn, "r"),
    "receiver went down": lambda conn: receivers.went_down(conn, "r", "e", 1.0),
    "receiver still down": lambda conn: receivers.still_down(conn, "r", "e", 1.0, 2),
    "receiver came up": lambda conn: receivers.came_up(conn, "r"),
    "next lapse": lambda conn: callbacks.next_lapse(conn, 0),
    "callbacks locked": lambda conn: callbacks.lock_pending(conn, [1]),
    "callbacks lapsed": lambda conn: callbacks.lock_lapsed(conn, 0, []),
    "callback claimed": lambda conn: callbacks.claim(conn, [{"deadline_id": 1, "token": "t", "attempts": 1}], 1.0),
    "callback succeeded": lambda conn: callbacks.succeed(conn, 1, "t"),
    "task ends": lambda conn: deadlines.task_ends(conn, [(1, "t")]),
    "facts": lambda conn: deadlines.backfill_facts(conn, ["b"]),
}


class Recording:
    """A connection that remembers its statements."""

    def __init__(self, conn):
        self._conn = conn
        self.statements = []

    def execute(self, statement, parameters=None):
        self.statements.append(statement)
        return self._conn.execute(statement, parameters)


@pytest.mark.parametrize("work", HOT.values(), ids=HOT)
def test_a_statement_is_built_once(work):
    recordings = []

    def record(conn):
        recordings.append(Recording(conn))
        # Some fail on the empty database, after their statement.
        with suppress(Fenced, Poison, DBAPIError, NoResultFound):
            work(recordings[-1])

    MemoryStore().play([("a", record), ("a", rollback), ("b", record)])
    first, again = ([id(statement) for statement in recording.statements] for recording in recordings)
    assert first == again != []
