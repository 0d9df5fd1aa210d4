"""A long error of many runs is sent and stored once for their attempt, and everything that people look at has all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.history import waiting
from tests.support.hot_paths import Hot
from tests.support.installation import Installation
from tests.support.servers import Servers
from tests.support.tiers import some

from retrofill.driver.execute import Result
from retrofill.driver.report import Acknowledged, Reporter, Wire
from retrofill.protocol.facts import ErrorInfo
from retrofill.protocol.launch import Launch
from retrofill.states import TaskState
from retrofill_core.contract.runs import AttemptEnded, Report
from retrofill_core.contract.runs import ErrorInfo as Stored
from retrofill_core.store.engine import make_engine
from retrofill_tools.client.runs import describe_run, failed_runs, find_run
from run_starter.executors import LaunchRequest, TimedOut
from run_starter.executors.answers import report_of
from run_starter.host.hosting import DriverHost
from run_starter.host.report_wire import ReportWire

SHORT = ErrorInfo("ValueError", "the source is corrupt")
LONG = ErrorInfo("ValueError", "the source is corrupt\n" + "m" * 3900, "t" * 7900)
FEW, MANY = 20, 60
# What one more run may add with a long error, beyond what it adds with a short one: references in each place.
PER_RUN = 200
BYTES = """
SELECT (SELECT coalesce(sum(octet_length(value)), 0) FROM run_starter_outbox) AS events,
       (SELECT sum(coalesce(octet_length(error::text), 0) + coalesce(octet_length(publish_error::text), 0)) FROM run) AS runs,
       (SELECT coalesce(sum(octet_length(error::text)), 0) FROM task_run) AS tasks,
       (SELECT coalesce(sum(octet_length(error::text)), 0) FROM attempt) AS attempts
"""


class Sent(Wire):
    """What a driver's host would publish of its reports."""

    def __init__(self, request: LaunchRequest) -> None:
        self.reports: list[Report] = []
        self._request = request

    def send(
        self, kind: str, fields: dict[str, Any], acknowledged: Acknowledged | None = None, trace: str | None = None
    ) -> None:
        known = {name: value for name, value in fields.items() if value is not None}
        ids = [run.id for run in self._request.runs]
        self.reports.append(report_of(self._request, ids, {"type": kind, **known}))

    def flush(self) -> None:
        pass


class Told(DriverHost):
    """What a host reports by itself."""

    def __init__(self, made: Installation) -> None:
        engine = make_engine(made.settings.dsn_of("run-starter"), "test")
        super().__init__(engine, ReportWire.__new__(ReportWire), lambda *_: {})
        self.reports: list[Report] = []

    def report(self, report: Report) -> None:
        self.reports.append(report)


def of_driver(request: LaunchRequest, tell: Callable[[Reporter, Launch], object]) -> list[Report]:
    wire, launch = Sent(request), Launch.of(request.as_json())
    reporter = Reporter(wire, launch)
    for run in launch.runs:
        reporter.began(run, None)
    tell(reporter, launch)
    return wire.reports


def a_task_fails(_: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    def tell(reporter: Reporter, launch: Launch) -> None:
        (piece,) = launch.pieces
        tell = reporter.of_tasks(piece)
        tell("only", TaskState.RUNNING)
        tell("only", TaskState.RETRYING, 1, error)
        tell("only", TaskState.RUNNING, 2)
        tell("only", TaskState.FAILED, 2, error)
        reporter.attempt_ended(error)

    return of_driver(request, tell)


def the_import_fails(_: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    def tell(reporter: Reporter, launch: Launch) -> None:
        for run in launch.runs:
            reporter.ended(run, Result(False, error, everywhere=True))
        reporter.attempt_ended()

    return of_driver(request, tell)


def the_table_refuses_all(_: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    def tell(reporter: Reporter, launch: Launch) -> None:
        for run in launch.runs:
            reporter.staged(run, ("/out",))
        for run in launch.runs:
            reporter.ended(run, Result(False, error))
        reporter.attempt_ended()

    return of_driver(request, tell)


def the_table_is_away(_: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    def tell(reporter: Reporter, launch: Launch) -> None:
        for run in launch.runs:
            reporter.staged(run, ("/out",))
        for run in launch.runs:
            reporter.ended(run, Result(False, error, put_off=True))
        reporter.attempt_ended()

    return of_driver(request, tell)


def its_publisher_is_lost(_: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    def tell(reporter: Reporter, launch: Launch) -> None:
        for run in launch.runs:
            reporter.staged(run, ("/out",))

    lost = Stored(type=error.type, message=error.message)
    begun = request.runs[0].id
    return [*of_driver(request, tell), AttemptEnded(**request.about, state="lost", begun=begun, error=lost)]


def its_driver_is_lost(_: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    lost = Stored(type=error.type, message=error.message)
    return [AttemptEnded(**request.about, state="lost", begun=request.runs[0].id, error=lost)]


def its_process_ends(made: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    host = Told(made)
    over = TimedOut("only", 1, Stored(**vars(error)))
    host.timed_out(request, request.runs[0].id, over)
    return [*of_driver(request, lambda *_: None), *host.reports]


def every_process_would_end(made: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    host = Told(made)
    over = TimedOut("only", 1, Stored(**vars(error)), everywhere=True)
    host.timed_out(request, request.runs[0].id, over)
    return [*of_driver(request, lambda *_: None), *host.reports]


def its_host_refuses_it(made: Installation, request: LaunchRequest, error: ErrorInfo) -> list[Report]:
    host = Told(made)
    host.refused(request, error.message)
    return host.reports


KINDS = [
    *(a_task_fails, the_import_fails, the_table_refuses_all, the_table_is_away, its_publisher_is_lost),
    *(its_driver_is_lost, its_process_ends, every_process_would_end, its_host_refuses_it),
]
USUAL = (a_task_fails, the_table_refuses_all, its_driver_is_lost)


@pytest.fixture(scope="module")
def hot(servers: Servers) -> Iterator[Hot]:
    made = servers.installation()
    yield Hot(made)
    made.close()


Kind = Callable[[Installation, LaunchRequest, ErrorInfo], list[Report]]


def counted(hot: Hot, kind: Kind, size: int, error: ErrorInfo) -> tuple[dict[str, int], str]:
    """Bytes in Kafka and Postgres for one range, and its backfill's id."""
    prefix = f"{kind.__name__.replace('_', '-')}-{size}-{len(error.message)}-"
    (id,) = waiting(hot.made, 1, size, prefix=prefix, limit=1, batch_size=size, batch_mode="range")
    hot.claimed([id])
    (launch,) = hot.take_launches()
    (before,) = hot.made.query(BYTES)
    reports = kind(hot.made, launch, error)
    hot.heard(reports)
    (after,) = hot.made.query(BYTES)
    stored = {name: int(after[name] - before[name]) for name in after}
    return {"reports": sum(len(each.encode()) for each in reports), **stored}, id


@pytest.mark.parametrize("kind", some(KINDS, a_task_fails), ids=lambda each: each.__name__)
def test_a_long_error_is_sent_and_stored_once_for_its_attempt(hot: Hot, kind: Kind) -> None:
    def per_run(error: ErrorInfo) -> float:
        few, many = (sum(counted(hot, kind, size, error)[0].values()) for size in (FEW, MANY))
        return (many - few) / (MANY - FEW)

    assert per_run(LONG) - per_run(SHORT) < PER_RUN


@pytest.mark.parametrize(
    "kind", [a_task_fails, the_import_fails, every_process_would_end], ids=lambda each: each.__name__
)
def test_each_run_is_shown_with_all_of_it(hot: Hot, kind: Kind) -> None:
    whole = {"type": LONG.type, "message": LONG.message, "traceback": LONG.traceback}
    _, id = counted(hot, kind, 5, LONG)
    engine = make_engine(hot.made.settings.dsn_of("owner"), "test")
    with engine.connect() as conn:
        ids = [row["id"] for row in hot.made.query("SELECT id FROM run WHERE backfill_id = %s ORDER BY id", id)]
        for each in ids:
            found = find_run(conn, each)
            assert found is not None
            facts = describe_run(conn, found)
            assert {str(error) for error in (facts.error, *(task.error for task in facts.tasks)) if error} == {
                str(whole)
            }
        for failed in failed_runs(conn, id, 10):
            assert failed.error == whole
            assert all(task.error == whole for task in failed.failed_tasks)
    engine.dispose()
