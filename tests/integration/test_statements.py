"""The hot paths' SQL: the number of statements does not grow with the batch, and each uses an
index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from sqlalchemy import Engine
from tests.support.history import finished, waiting
from tests.support.installation import PARTITIONS, Installation
from tests.support.servers import Servers
from tests.support.statements import Recorded, recorded, scanned

from deadline_watcher.set_aside import SetAside
from retrofill.bus.envelope import Record
from retrofill.bus.handler import Received
from retrofill.bus.takeover import Ends
from retrofill.bus.transaction import Transaction, shard_transaction
from retrofill.contract.runs import (
    AttemptEnded,
    AttemptHeartbeat,
    Report,
    RunBegan,
    RunReported,
    RunStaged,
    TaskReported,
)
from retrofill.contract.topics import PLANNER, RUN_STARTER, WATCHER, Service, Topic
from retrofill.domain.attempt import AttemptMode
from retrofill.store import attempts, backfills, deadlines, failures
from retrofill.store.engine import make_engine
from run_starter.claims import Claims
from run_starter.definitions import Definitions
from run_starter.executors import Condition, Key, LaunchRequest, RunToDo
from run_starter.launching import Launching
from run_starter.leases import Leases
from run_starter.reports import handle_reports
from run_starter.starting import Starting

YEARS_OF_DAYS = 3650
PIPELINES = 100


class Launched:
    """An executor that records its launches."""

    def __init__(self) -> None:
        self.launches: list[LaunchRequest] = []

    def condition(self) -> Condition:
        raise AssertionError("nobody asks for its seats here")

    def waiting(self) -> list[LaunchRequest]:
        raise AssertionError("nothing waits here")

    def launch(self, launch: LaunchRequest) -> None:
        self.launches.append(launch)

    def hosted(self) -> set[Key]:
        return set()

    def end(self, key: Key) -> None:
        raise AssertionError("nothing is ended here")

    def close(self) -> None:
        raise AssertionError("nothing is closed here")


def admin_is_not_asked() -> AdminClient:
    raise AssertionError("no lease is over here")


@dataclass
class Hot:
    """An installation without services. Tests run the services' transactions under the services'
    roles.
    """

    made: Installation

    def __post_init__(self) -> None:
        self.launched = Launched()
        self.definitions = Definitions()
        self.leases = Leases(Ends(admin_is_not_asked, lambda: None, ""), self.definitions, 5, PARTITIONS)
        launching = Launching(self.launched, self.definitions, 15.0, launched=lambda: None)
        self.claims = Claims(Starting(launching, self.leases, lambda: 1), drivers=4)
        self.made.query(
            "WITH host AS (INSERT INTO host (name, lease_until, submits) VALUES ('test', 'infinity', false) RETURNING id) "
            "INSERT INTO seat SELECT host.id, no, true FROM host, generate_series(1, 2000) AS no RETURNING no"
        )

    def engine(self, service: Service) -> Engine:
        return make_engine(self.made.settings.dsn_of(service.name), "test")

    def sent(self, service: Service, work: Callable[[Transaction], Any]) -> Recorded:
        """The statements that one transaction of shard 0 sends."""
        engine = self.engine(service)
        try:
            with recorded(engine) as found, shard_transaction(engine, service, 0, 0, 900_000) as tx:
                work(tx)
            return found
        finally:
            engine.dispose()

    def claimed(self, ids: list[str]) -> Recorded:
        """The run-starter's check of these backfills."""
        return self.sent(RUN_STARTER, lambda tx: self.claims.check(tx, ids))

    def reported(self, launches: list[LaunchRequest]) -> Recorded:
        """One batch with all reports of these attempts' drivers."""
        return self.heard([report for launch in launches for report in _reports(launch)])

    def heard(self, reports: list[Report]) -> Recorded:
        """One batch of reports."""
        received = [_received(report) for report in reports]
        return self.sent(
            RUN_STARTER,
            lambda tx: handle_reports(tx, received, self.definitions, max_lost_attempts=5, partitions=PARTITIONS),
        )

    def asked(self, launch: LaunchRequest) -> Recorded:
        """What the host of an attempt reads for its driver."""
        id, run = launch.attempt_id, launch.runs[0].id

        def read(tx: Transaction) -> None:
            attempts.lease_left(tx.conn, id, run)
            attempts.accepted(tx.conn, id, run)
            attempts.to_be_ended(tx.conn, [id])

        return self.sent(RUN_STARTER, read)

    def leases_looked_at(self) -> Recorded:
        """The check of the shard's leases."""
        return self.sent(RUN_STARTER, self.leases.check)

    def planner_looked(self, ids: list[str]) -> Recorded:
        """The planner's check of backfills that have not ended."""
        return self.sent(PLANNER, lambda tx: backfills.to_be_decided(tx.conn, ids))

    def missed(self, count: int) -> Recorded:
        """The watcher's check when ``count`` deadlines are due."""
        armed = self.made.query(
            "INSERT INTO deadline (shard, alert, pipeline, backfill_id, run_id, reference, due_at, state) "
            "SELECT 0, 'due', 'x', backfill_id, id, 'RUN_QUEUED_AT', clock_timestamp(), 'armed' FROM run "
            "WHERE state = 'queued' AND NOT EXISTS (SELECT FROM deadline WHERE run_id = run.id AND alert = 'due') "
            "LIMIT %s RETURNING id",
            count,
        )
        aside = SetAside()
        found = self.sent(WATCHER, lambda tx: aside.judge(tx, deadlines.lock_due(tx.conn, 0, aside.ids())))
        ids = [row["id"] for row in armed]
        missed = "SELECT count(*) FROM deadline WHERE id = ANY(%s) AND state = 'missed'"
        assert self.made.value(missed, ids) == count
        return found

    def take_launches(self) -> list[LaunchRequest]:
        launches, self.launched.launches = self.launched.launches, []
        return launches


def _reports(launch: LaunchRequest) -> list[Report]:
    found: list[Report] = [AttemptHeartbeat(**launch.about)]
    for run in launch.runs:
        about = _about(launch, run)
        found += [
            RunBegan(**about),
            TaskReported(**about, task="only", state="running"),
            TaskReported(**about, task="only", state="succeeded"),
            RunReported(**about, state="succeeded"),
        ]
    return [*found, AttemptEnded(**launch.about, state="done")]


def _about(launch: LaunchRequest, run: RunToDo) -> dict[str, Any]:
    """The fields that all reports on one of its runs share."""
    return {**launch.about, "run_id": run.id, "attempt": run.attempt}


def _received(report: Report) -> Received:
    record = Record(Topic.RUN_REPORTS, 0, 0, report.backfill_id.encode(), report.encode(), {}, (), 0)
    return Received(record, report.backfill_id, report, "ce")


@pytest.fixture(scope="module")
def old(servers: Servers) -> Iterator[Hot]:
    """A history of ten years of a hundred daily pipelines: 365,000 runs."""
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
    assert _without_definitions(many) == _without_definitions(one)
    assert len(_without_definitions(one)) <= 12


def test_who_has_no_run_left_to_start_takes_no_driver_from_who_has(empty: Hot) -> None:
    busy = waiting(empty.made, 1, 1, prefix="busy-")
    empty.claimed(busy)
    waits = waiting(empty.made, 1, 3, prefix="waits-")
    empty.take_launches()
    empty.made.query("UPDATE seat SET warm = (no = 2000) RETURNING no")
    empty.claimed([*busy, *waits])
    assert [launch.backfill_id for launch in empty.take_launches()] == waits


def test_one_report_sends_as_much_as_those_of_a_hundred_runs(empty: Hot) -> None:
    empty.claimed(waiting(empty.made, 1, 101, limit=101))
    first, *others = empty.take_launches()
    one, many = empty.reported([first]), empty.reported(others)
    assert len(others) == 100
    assert many.shapes() == one.shapes()
    assert len(one.shapes()) <= 16
    assert empty.made.value("SELECT count(*) FROM run WHERE state = 'succeeded'") == 101


def test_an_attempt_of_many_runs_sends_as_much_as_one_of_a_single_run(empty: Hot) -> None:
    single = empty.claimed(waiting(empty.made, 1, 1, prefix="single-"))
    of_single = empty.reported(empty.take_launches())
    batch = empty.claimed(waiting(empty.made, 1, 40, prefix="batch-", limit=1, batch_size=20))
    (launch,) = empty.take_launches()
    assert len(launch.runs) == 20
    assert _without_definitions(batch) == _without_definitions(single)
    assert empty.reported([launch]).shapes() == of_single.shapes()
    assert empty.made.value("SELECT count(*) FROM run WHERE state = 'succeeded'") == 21


def test_one_deadline_sends_as_much_as_a_hundred(empty: Hot) -> None:
    waiting(empty.made, 1, 200)
    one, many = empty.missed(1), empty.missed(100)
    assert many.shapes() == one.shapes()


def test_the_planner_looks_at_a_hundred_backfills_with_one_statement(empty: Hot) -> None:
    one = empty.planner_looked(waiting(empty.made, 1, 1, prefix="one-"))
    many = empty.planner_looked(waiting(empty.made, 100, 1, prefix="many-"))
    assert many.shapes() == one.shapes()


def test_every_statement_of_the_hot_paths_uses_an_index(old: Hot) -> None:
    ids = waiting(old.made, 3, 50, on_run_failure="cancel")
    recordings = [
        old.claimed(ids),
        old.leases_looked_at(),
        old.sent(PLANNER, lambda tx: [failures.count_failed(tx.conn, id) for id in ids]),
    ]
    staged, lost, *others = old.take_launches()
    recordings += [
        old.heard([AttemptHeartbeat(**staged.about)]),
        old.asked(staged),
        old.heard([RunStaged(**_about(staged, staged.runs[0]), outputs=("/nowhere",))]),
        old.heard([AttemptEnded(**each.about, state="lost", begun=each.runs[0].id) for each in (staged, lost)]),
        old.reported(others),
        old.claimed(ids),
        old.planner_looked(ids),
        old.missed(10),
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


def test_a_statement_without_an_index_is_noticed(old: Hot) -> None:
    engine = old.engine(RUN_STARTER)
    with recorded(engine) as found, engine.connect() as conn:
        conn.exec_driver_sql("SELECT id FROM retrofill.run WHERE code_sha256 = 'x'")
    engine.dispose()
    with old.made.session() as conn:
        assert [scanned(conn, statement) for statement in found.statements] == [{"run"}]


def _without_definitions(found: Recorded) -> list[str]:
    return [text for text in found.shapes() if not text.startswith("SELECT retrofill.backfill.definition")]
