"""A host publishes its driver's reports on the driver's own attempt and runs, and nothing else."""

from __future__ import annotations

import queue
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.driver.pooled import Recorder as Driven
from tests.unit.driver.pooled import launch

from retrofill_core.contract.runs import AttemptEnded, AttemptHeartbeat, Report, RunBegan, RunReported
from run_starter.executors import LaunchRequest, OnDelivery
from run_starter.executors.answers import Answers, NotAReport, report_of

LAUNCH = launch(7, [1, 2])
NOW = datetime(2020, 1, 1, tzinfo=UTC)
ERROR = {"type": "ValueError", "message": "no rows"}


def fields(type: str, **more: Any) -> dict[str, Any]:
    """A report as a driver sends it."""
    return {"type": type, "sent_at": NOW.isoformat(), **more}


def checked(given: Any) -> Report:
    return report_of(LAUNCH, {1, 2}, given)


def test_a_report_is_about_the_drivers_own_attempt() -> None:
    assert checked(fields("RunBegan", run_id=2, attempt=3)) == RunBegan(
        backfill_id="b", attempt_id=7, run_id=2, attempt=3, sent_at=NOW
    )
    assert isinstance(checked(fields("RunReported", run_id=1, attempt=1, state="succeeded")), RunReported)


@pytest.mark.parametrize("type", ["AttemptHeartbeat", "AttemptEnded"])
def test_a_driver_cannot_name_another_attempt(type: str) -> None:
    state = {"state": "done"} if type == "AttemptEnded" else {}
    report = checked(fields(type, backfill_id="theirs", attempt_id=8, **state))
    assert isinstance(report, (AttemptHeartbeat, AttemptEnded))
    assert (report.backfill_id, report.attempt_id) == ("b", 7)


def test_a_driver_cannot_name_another_run() -> None:
    with pytest.raises(NotAReport, match="reported on run 3, which it was not given"):
        checked(fields("RunReported", run_id=3, attempt=1, state="succeeded"))


@pytest.mark.parametrize("state", ["lost", "released"])
def test_a_driver_cannot_say_that_it_was_lost(state: str) -> None:
    """Its runs would begin again elsewhere while it works on."""
    with pytest.raises(NotAReport, match=f"reported that it was {state}, which only its host can"):
        checked(fields("AttemptEnded", state=state, error=ERROR))


@pytest.mark.parametrize("state", ["done", "failed"])
def test_a_driver_says_that_it_is_done_or_failed(state: str) -> None:
    report = checked(fields("AttemptEnded", state=state, error=ERROR if state == "failed" else None))
    assert isinstance(report, AttemptEnded) and report.state == state


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "unknown kind of report"),
        ([], "unknown kind of report"),
        ({}, "unknown kind of report"),
        (fields("RunSucceeded", run_id=1), "unknown kind of report"),
        (fields("BackfillCancelRequested"), "unknown kind of report"),
        (fields("RunReported", run_id=1, attempt=1, state="perhaps"), "invalid RunReported: .*state"),
        (fields("RunBegan", attempt=1), "invalid RunBegan: .*run_id"),
    ],
)
def test_what_is_no_report_is_said_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(NotAReport, match=said) as refused:
        checked(given)
    assert "\n" not in str(refused.value)


class Host(Driven):
    """Also records what it is to publish."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[tuple[Report, OnDelivery, str | None]] = []
        self.renewals: list[Callable[[], object]] = []

    def publish(
        self,
        launch: LaunchRequest,
        report: Report,
        on_delivery: OnDelivery,
        trace: str | None,
        renewed: Callable[[], object],
    ) -> None:
        assert launch is LAUNCH
        self.published.append((report, on_delivery, trace))
        self.renewals.append(renewed)


def test_a_host_publishes_what_is_a_report_and_tells_the_driver_of_the_rest() -> None:
    host, heard = Host(), queue.SimpleQueue[dict[str, Any]]()
    answers = Answers(host, LAUNCH, heard.put)
    answers.hear("report", {"number": 1, "trace": "00-a", "report": fields("RunBegan", run_id=1, attempt=1)})
    ((report, on_delivery, trace),) = host.published
    assert (report.type, trace) == ("RunBegan", "00-a")
    on_delivery(None)
    assert heard.get(timeout=20) == {"acknowledged": 1}
    theirs = fields("RunReported", run_id=3, attempt=1, state="succeeded")
    answers.hear("report", {"number": 2, "trace": None, "report": theirs})
    assert heard.get(timeout=20) == {"undelivered": "its driver reported on run 3, which it was not given"}
    assert len(host.published) == 1


def asked_for_the_second_run() -> tuple[Host, Answers, queue.SimpleQueue[dict[str, Any]], OnDelivery]:
    """A driver that began a run and asks for the next one, before Kafka has its report."""
    host, heard = Host(), queue.SimpleQueue[dict[str, Any]]()
    answers = Answers(host, LAUNCH, heard.put)
    answers.hear("may_begin", 1)
    assert heard.get(timeout=20)["begin"] is not None
    answers.hear("report", {"number": 1, "trace": None, "report": fields("RunBegan", run_id=1, attempt=1)})
    ((_, on_delivery, _),) = host.published
    answers.hear("may_begin", 2)
    return host, answers, heard, on_delivery


def test_a_run_begins_once_the_begin_of_the_one_before_is_durable() -> None:
    """Of an attempt that fell silent, one run counts as begun: others would be executed twice under one number."""
    _, answers, heard, on_delivery = asked_for_the_second_run()
    with pytest.raises(queue.Empty):
        heard.get(timeout=0.2)
    assert answers.begun == 1
    on_delivery(None)
    said = [heard.get(timeout=20) for _ in range(2)]
    assert {"acknowledged": 1} in said and any(each.get("begin") is not None for each in said)
    assert answers.begun == 2


def test_a_run_begins_once_all_that_is_known_of_the_one_before_is_durable() -> None:
    """While Kafka is away, the run that began goes on, and no other begins."""
    host, answers, heard, on_delivery = asked_for_the_second_run()
    on_delivery(None)
    assert [heard.get(timeout=20) for _ in range(2)]
    ended = fields("RunReported", run_id=2, attempt=1, state="succeeded")
    answers.hear("report", {"number": 2, "trace": None, "report": ended})
    answers.hear("may_begin", 1)
    with pytest.raises(queue.Empty):
        heard.get(timeout=0.2)
    host.published[-1][1](None)
    said = [heard.get(timeout=20) for _ in range(2)]
    assert {"acknowledged": 2} in said and any(each.get("begin") is not None for each in said)


def test_a_heartbeat_that_renewed_the_lease_though_kafka_does_not_have_it_is_said_to_the_driver() -> None:
    host, heard = Host(), queue.SimpleQueue[dict[str, Any]]()
    answers = Answers(host, LAUNCH, heard.put)
    for number in (1, 2):
        answers.hear("report", {"number": number, "trace": None, "report": fields("AttemptHeartbeat")})
    host.renewals[-1]()
    assert heard.get(timeout=20) == {"renewed": 2}
    host.published[0][1](None)
    assert heard.get(timeout=20) == {"acknowledged": 1}


def test_nothing_begins_after_a_begin_that_never_arrived() -> None:
    _, answers, heard, on_delivery = asked_for_the_second_run()
    on_delivery("a RunBegan was not delivered")
    said = [heard.get(timeout=20) for _ in range(2)]
    assert {"begin": None} in said and answers.begun == 1


def test_nothing_begins_after_the_drivers_end() -> None:
    _, answers, heard, _ = asked_for_the_second_run()
    answers.ended(reported=True, reason="")
    assert heard.get(timeout=20) == {"begin": None}
    assert answers.begun == 1
