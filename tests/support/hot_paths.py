"""The run-starter's, planner's and watcher's transactions without their services, and the statements
that they send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka.admin import AdminClient
from sqlalchemy import Engine

from backfill_planner.progress import announce
from deadline_watcher.verdicts import apply_verdicts
from retrofill.protocol.launch import LaunchedRun
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.handler import Received, SetAside
from retrofill_core.bus.takeover import Ends
from retrofill_core.bus.transaction import Transaction, shard_transaction
from retrofill_core.contract.runs import AttemptEnded, AttemptHeartbeat, Report, RunBegan, RunReported, TaskReported
from retrofill_core.contract.topics import PLANNER, RUN_STARTER, WATCHER, Service, Topic
from retrofill_core.store import attempts, backfills, deadlines
from retrofill_core.store.engine import make_engine
from retrofill_core.store.sql import database_now
from run_starter.claims.checks import Claims
from run_starter.claims.starting import Starting
from run_starter.definitions import Definitions
from run_starter.executors import Condition, Key, LaunchRequest
from run_starter.host.launching import Launching
from run_starter.reports.handling import handle_reports
from run_starter.reports.leases import Leases
from run_starter.reports.marking import interrupt
from tests.support.installation import PARTITIONS, Installation
from tests.support.statements import Recorded, recorded


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
        self.claims = Claims(Starting(launching, self.leases, lambda: [1]), expected=4)
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

    def reported(self, launches: list[LaunchRequest], state: Literal["succeeded", "failed"] = "succeeded") -> Recorded:
        """One batch with all reports of these attempts' drivers, whose runs end in ``state``."""
        return self.heard([report for launch in launches for report in _reports(launch, state)])

    def heard(self, reports: list[Report]) -> Recorded:
        """One batch of reports."""
        received = [_received(report) for report in reports]
        return self.sent(
            RUN_STARTER,
            lambda tx: handle_reports(tx, received, self.definitions, max_lost_attempts=5, partitions=PARTITIONS),
        )

    def ended_and_claimed(self, tx: Transaction, launch: LaunchRequest) -> None:
        """A run's last reports, and the claims that they permit, in one transaction as the handler does."""
        received = [_received(report) for report in _reports(launch, "succeeded")]
        handle_reports(tx, received, self.definitions, max_lost_attempts=5, partitions=PARTITIONS)
        self.claims.check_after_ends(tx, [key for key, after in tx.checks.items() if after <= 0])

    def asked(self, launch: LaunchRequest) -> Recorded:
        """What the host of an attempt reads for its driver."""
        id, run = launch.attempt_id, launch.runs[0].id

        def read(tx: Transaction) -> None:
            attempts.lease_left(tx.conn, id, run)
            attempts.accepted(tx.conn, id, [run])
            attempts.to_be_ended(tx.conn, [id])

        return self.sent(RUN_STARTER, read)

    def leases_looked_at(self) -> Recorded:
        """The check of the shard's leases."""
        return self.sent(RUN_STARTER, self.leases.check)

    def interrupted(self) -> Recorded:
        """The mark of runs that timed out, as of now."""
        return self.sent(RUN_STARTER, lambda tx: interrupt(tx, self.definitions, database_now(tx.conn)))

    def planner_looked(self, ids: list[str]) -> Recorded:
        """The planner's check of backfills that have not ended."""
        return self.sent(PLANNER, lambda tx: backfills.to_be_decided(tx.conn, ids))

    def progress_announced(self, ids: list[str]) -> Recorded:
        """The planner's announcement of how far these are, after something changed."""
        return self.sent(PLANNER, lambda tx: announce(tx, ids))

    def missed(self, count: int) -> Recorded:
        """The watcher's check when ``count`` deadlines are due."""
        armed = self.made.query(
            "INSERT INTO deadline (shard, alert, pipeline, backfill_id, run_id, reference, due_at, state) "
            "SELECT 0, 'due', 'x', backfill_id, id, 'RUN_QUEUED_AT', clock_timestamp(), 'armed' FROM run "
            "WHERE state = 'queued' AND NOT EXISTS (SELECT FROM deadline WHERE run_id = run.id AND alert = 'due') "
            "LIMIT %s RETURNING id",
            count,
        )
        aside = SetAside("deadline_set_aside")
        found = self.sent(
            WATCHER, lambda tx: aside.each(tx, deadlines.lock_due(tx.conn, 0, aside.ids()), apply_verdicts)
        )
        ids = [row["id"] for row in armed]
        missed = "SELECT count(*) FROM deadline WHERE id = ANY(%s) AND state = 'missed'"
        assert self.made.value(missed, ids) == count
        return found

    def take_launches(self) -> list[LaunchRequest]:
        launches, self.launched.launches = self.launched.launches, []
        return launches


def _reports(launch: LaunchRequest, state: Literal["succeeded", "failed"]) -> list[Report]:
    found: list[Report] = [AttemptHeartbeat(**launch.about)]
    for run in launch.runs:
        about = about_run(launch, run)
        found += [
            RunBegan(**about),
            TaskReported(**about, task="only", state="running"),
            TaskReported(**about, task="only", state=state),
            RunReported(**about, state=state),
        ]
    return [*found, AttemptEnded(**launch.about, state="done", stays=state == "succeeded")]


def about_run(launch: LaunchRequest, run: LaunchedRun) -> dict[str, Any]:
    """The fields that all reports on one of its runs share."""
    return {**launch.about, "run_id": run.id, "attempt": run.attempt}


def _received(report: Report) -> Received:
    record = Record(Topic.RUN_REPORTS, 0, 0, report.backfill_id.encode(), report.encode(), {}, (), 0)
    return Received(record, report.backfill_id, report, "ce")


def without_definitions(found: Recorded) -> list[str]:
    return [text for text in found.shapes() if not text.startswith("SELECT retrofill.backfill.definition")]
