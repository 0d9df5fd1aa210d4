"""The hot paths' SQL: the number of statements does not grow with the batch, and each uses an
index.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.definitions import alert
from tests.support.history import finished, waiting
from tests.support.hot_paths import Hot, about_run, without_definitions
from tests.support.installation import PARTITIONS, Installation
from tests.support.rows import a_run
from tests.support.servers import Servers
from tests.support.statements import Recorded, entries_read, recorded, scanned

from backfill_planner.commands import retry_runs
from retrofill.sdk.names import MAX_BATCH
from retrofill.states import AttemptMode
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import RunRetryRequested
from retrofill_core.contract.runs import AttemptEnded, AttemptHeartbeat, RunStaged
from retrofill_core.contract.topics import PLANNER, RUN_STARTER
from retrofill_core.domain.planning import Intervals
from retrofill_core.store import backfills, conditions, launches, planning, progress, purge, run_commands, runs, undo
from retrofill_core.store.claims import pipelines_with_suspects
from retrofill_core.store.engine import make_engine
from retrofill_core.store.rows import present

YEARS_OF_DAYS = 2600
FIRST_DAY, DAY = datetime(2000, 1, 1, tzinfo=UTC), timedelta(days=1)
PIPELINES = 100


@pytest.fixture(scope="module")
def old(servers: Servers) -> Iterator[Hot]:
    """A history of seven years of a hundred daily pipelines: 260,000 runs."""
    made = servers.installation()
    finished(made, PIPELINES, YEARS_OF_DAYS)
    yield Hot(made)
    made.close()


@pytest.fixture
def empty(installation: Installation) -> Hot:
    """An installation without history."""
    return Hot(installation)


def test_one_claim_sends_as_much_as_a_hundred(empty: Hot) -> None:
    one = empty.claimed(waiting(empty.made, 1, 1, prefix="one-"))
    assert len(empty.take_launches()) == 1
    many = empty.claimed(waiting(empty.made, 100, 5, prefix="many-"))
    assert len(empty.take_launches()) == 500
    # Definitions are immutable and read once per backfill.
    assert without_definitions(many) == without_definitions(one)
    assert len(without_definitions(one)) <= 12


def test_who_has_no_run_left_to_start_takes_no_driver_from_who_has(empty: Hot) -> None:
    busy = waiting(empty.made, 1, 1, prefix="busy-")
    empty.claimed(busy)
    waits = waiting(empty.made, 1, 3, prefix="waits-")
    empty.take_launches()
    empty.made.query("UPDATE seat SET warm = (no = 2000) RETURNING no")
    empty.claimed([*busy, *waits])
    assert [launch.backfill_id for launch in empty.take_launches()] == waits


def test_who_waits_for_a_seat_gets_the_one_that_a_run_of_its_shard_frees(empty: Hot) -> None:
    empty.made.query("UPDATE seat SET warm = (no <= 2) RETURNING no")
    empty.claimed(waiting(empty.made, 1, 5, prefix="busy-"))
    first, _ = empty.take_launches()
    small = waiting(empty.made, 1, 1, prefix="small-")
    empty.claimed(small)
    assert empty.take_launches() == []
    empty.sent(RUN_STARTER, lambda tx: empty.ended_and_claimed(tx, first))
    assert [launch.backfill_id for launch in empty.take_launches()] == small


def test_one_report_sends_as_much_as_those_of_a_hundred_runs(empty: Hot) -> None:
    empty.claimed(waiting(empty.made, 1, 101, limit=101))
    first, *others = empty.take_launches()
    one, many = empty.reported([first]), empty.reported(others)
    assert len(others) == 100
    assert many.shapes() == one.shapes()
    assert len(one.shapes()) <= 16
    assert empty.made.value("SELECT count(*) FROM run WHERE state = 'succeeded'") == 101


def test_one_failure_sends_as_much_as_a_hundred(empty: Hot) -> None:
    lists: dict[str, Any] = {"on_run_failed": [{"callback": "page"}, {"callback": "page", "digest_seconds": 0}]}
    empty.claimed(waiting(empty.made, 1, 101, limit=101, **lists))
    first, *others = empty.take_launches()
    one, many = empty.reported([first], "failed"), empty.reported(others, "failed")
    # The first opens what the others join.
    assert many.shapes() == one.shapes()
    assert len(one.shapes()) <= 20
    made = empty.made.query("SELECT place, count(*) AS n FROM callback GROUP BY place ORDER BY place")
    # One that collects them all, and one for each.
    assert [(row["place"], row["n"]) for row in made] == [(0, 1), (1, 101)]
    assert empty.made.value("SELECT count(*) FROM callback_run") == 202


def test_an_attempt_of_many_runs_sends_as_much_as_one_of_a_single_run(empty: Hot) -> None:
    single = empty.claimed(waiting(empty.made, 1, 1, prefix="single-"))
    of_single = empty.reported(empty.take_launches())
    batch = empty.claimed(waiting(empty.made, 1, 40, prefix="batch-", limit=1, batch_size=20))
    (launch,) = empty.take_launches()
    assert len(launch.runs) == 20
    assert without_definitions(batch) == without_definitions(single)
    assert empty.reported([launch]).shapes() == of_single.shapes()
    assert empty.made.value("SELECT count(*) FROM run WHERE state = 'succeeded'") == 21


def test_suspects_of_a_hundred_backfills_send_as_much_as_those_of_one(empty: Hot) -> None:
    """One of them is started: the server has no other one at the same time."""
    lost = "UPDATE run SET lost_at = clock_timestamp() WHERE backfill_id = ANY(%s) RETURNING id"
    ids = waiting(empty.made, 1, 2, prefix="one-")
    empty.made.query(lost, ids)
    one = empty.claimed(ids)
    assert len(empty.take_launches()) == 1
    empty.made.query("UPDATE attempt SET suspect_server = NULL RETURNING id")
    ids = waiting(empty.made, 100, 5, prefix="many-")
    empty.made.query(lost, ids)
    many = empty.claimed(ids)
    assert len(empty.take_launches()) == 1
    assert without_definitions(many) == without_definitions(one)
    assert len(without_definitions(one)) <= 13


def test_one_deadline_sends_as_much_as_a_hundred(empty: Hot) -> None:
    waiting(empty.made, 1, 200)
    one, many = empty.missed(1), empty.missed(100)
    assert many.shapes() == one.shapes()


def test_the_planner_looks_at_a_hundred_backfills_with_one_statement(empty: Hot) -> None:
    one = empty.planner_looked(waiting(empty.made, 1, 1, prefix="one-"))
    many = empty.planner_looked(waiting(empty.made, 100, 1, prefix="many-"))
    assert many.shapes() == one.shapes()


def retried(hot: Hot, runs: int, prefix: str) -> Recorded:
    """All runs of a backfill failed, and are retried."""
    late = alert("late", "RUN_QUEUED_AT", 3600, fire_on_failure=True)
    (id,) = waiting(hot.made, 1, runs, prefix=prefix, deadlines=[late])
    ended = "UPDATE run SET state = 'failed', finished_at = clock_timestamp() WHERE backfill_id = %s RETURNING id"
    assert len(hot.made.query(ended, id)) == runs
    command = RunRetryRequested(all_failed=True)
    answers: list[object] = []

    def retry(tx: Transaction) -> None:
        row = backfills.lock(tx.conn, id, wait=True)
        answers.append(retry_runs(tx, present(row), command, PARTITIONS))

    found = hot.sent(PLANNER, retry)
    assert [getattr(each, "runs", each) for each in answers] == [runs]
    return found


@pytest.mark.long
def test_a_retry_of_thousands_of_runs_sends_as_much_as_one(empty: Hot) -> None:
    one, many = retried(empty, 1, "one-"), retried(empty, 9_000, "many-")
    assert many.shapes() == one.shapes()
    # The one and a half chunks beyond take their own share.
    more = retried(empty, 25_000, "more-")
    assert len(more.shapes()) <= 3 * len(one.shapes())
    counts = "SELECT state, count(*) FROM run WHERE superseded_by IS NULL GROUP BY state"
    assert empty.made.query(counts) == [{"state": "queued", "count": 34_001}]
    assert empty.made.value("SELECT count(*) FROM deadline WHERE state = 'armed'") >= 34_001


def test_progress_of_a_hundred_backfills_sends_as_much_as_that_of_one(empty: Hot) -> None:
    one = empty.progress_announced(waiting(empty.made, 1, 1, prefix="one-"))
    ids = waiting(empty.made, 100, 5, prefix="many-")
    many = empty.progress_announced(ids)
    assert many.shapes() == one.shapes()
    assert empty.made.value("SELECT count(*) FROM backfill_progress") == 101
    # Nothing changed, so there is nothing to say, and nothing to write.
    again = empty.progress_announced(ids)
    assert len(again.shapes()) < len(one.shapes())
    assert empty.made.value("SELECT max(sequence) FROM backfill_progress") == 1


def test_every_statement_of_the_hot_paths_uses_an_index(old: Hot) -> None:
    ids = waiting(old.made, 3, 50, on_run_failure="cancel")
    cancels = "INSERT INTO run_cancel SELECT backfill_id, id FROM run WHERE position = 49 AND backfill_id = ANY(%s)"
    old.made.query(f"{cancels} RETURNING run_id", ids)
    recordings = [
        old.claimed(ids),
        old.leases_looked_at(),
        old.sent(PLANNER, lambda tx: [conditions.count_failed(tx.conn, id) for id in ids]),
    ]
    staged, lost, *others = old.take_launches()
    recordings += [
        old.heard([AttemptHeartbeat(**staged.about)]),
        old.asked(staged),
        old.heard([RunStaged(**about_run(staged, staged.runs[0]), outputs=("/nowhere",))]),
        old.heard([AttemptEnded(**each.about, state="lost", begun=each.runs[0].id) for each in (staged, lost)]),
        old.sent(
            RUN_STARTER,
            lambda tx: [pipelines_with_suspects(tx.conn, 0), runs.queued(tx.conn, ids[0], 9)],
        ),
        old.reported(others),
        old.claimed(ids),
        old.sent(RUN_STARTER, lambda tx: progress.last_attempts(tx.conn, [1, 2])),
        old.planner_looked(ids),
        old.progress_announced(ids),
        old.missed(10),
        retried(old, 50, "retry-"),
    ]
    # With a publisher, and with one that closes the sessions of the lost one.
    again = old.take_launches()
    assert [each.runs[0].id for each in again if each.mode == AttemptMode.PUBLISH] == [staged.runs[0].id]
    assert [each.runs[0].id for each in again if each.earlier == (lost.attempt_id,)] == [lost.runs[0].id]
    with old.made.session() as conn:
        found = {
            (table, statement.text)
            for recording in recordings
            for statement in recording.statements
            for table in scanned(conn, statement)
        }
    assert found == set()


@pytest.mark.parametrize("gap", [0, 1], ids=["a range", "every second day"])
def test_a_plan_reads_no_runs_of_other_pipelines_or_times(old: Hot, gap: int) -> None:
    starts = [FIRST_DAY + n * (1 + gap) * DAY for n in range(1000)]
    intervals = Intervals(starts, [start + DAY for start in starts])
    engine = old.engine(PLANNER)
    with recorded(engine) as found, engine.connect() as conn:
        known = planning.history(conn, 7, intervals).finished
        undo.intervals(conn, "old-7", None, FIRST_DAY + 9 * DAY)
        run_commands.not_done(conn, "old-7")
    engine.dispose()
    assert [run.start for run in known] == starts
    with old.made.session() as session:
        read = [entries_read(session, each, "run") for each in found.statements]
        assert {(table, each.text) for each in found.statements for table in scanned(session, each)} == set()
    # A GiST index finds a few more than it returns.
    assert max(read) <= 1.5 * YEARS_OF_DAYS


def test_a_launch_reads_no_attempts_that_ended_long_before_its_runs(old: Hot) -> None:
    again = [("old-1", [a_run(position=YEARS_OF_DAYS - 1)])]
    engine = old.engine(RUN_STARTER)
    with recorded(engine) as found, engine.connect() as conn:
        assert launches.earlier(conn, again) == launches.unpublished(conn, again) == []
    engine.dispose()
    with old.made.session() as session:
        read = [entries_read(session, statement, "attempt") for statement in found.statements]
    assert len(read) == 2
    assert max(read) <= MAX_BATCH < YEARS_OF_DAYS


def test_a_purge_reads_no_more_than_its_page(old: Hot) -> None:
    page = purge.Page([f"old-{n}" for n in range(1, 6)], purge.PurgePosition())
    engine = make_engine(old.made.settings.dsn_of("owner"), "test")
    with recorded(engine) as found, engine.connect() as conn:
        for kind in purge.KINDS:
            purge.lock(conn, kind, page, 5000)
            purge.count(conn, kind, page)
    engine.dispose()
    with old.made.session() as conn:
        assert {(table, each.text) for each in found.statements for table in scanned(conn, each)} == set()


def test_a_statement_without_an_index_is_noticed(old: Hot) -> None:
    engine = old.engine(RUN_STARTER)
    with recorded(engine) as found, engine.connect() as conn:
        conn.exec_driver_sql("SELECT id FROM retrofill.run WHERE code_sha256 = 'x'")
    engine.dispose()
    with old.made.session() as conn:
        assert [scanned(conn, statement) for statement in found.statements] == [{"run"}]
