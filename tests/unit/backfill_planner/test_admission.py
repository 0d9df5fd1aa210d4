"""The share of a batch that one step takes on: its memory and time are those of one request, not of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select
from tests.support.definitions import alert, daily
from tests.support.sessions import MemoryStore

from backfill_planner import requests as planned
from backfill_planner.handler import PlannerHandler
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Conflict
from retrofill_core.bus.handler import Hold, Received
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import (
    BackfillPauseRequested,
    BackfillRequested,
    BackfillUndoRequested,
    RunRetryRequested,
)
from retrofill_core.contract.base import Message
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.planning import Intervals, find_intervals
from retrofill_core.settings import Settings
from retrofill_core.store import pipelines
from retrofill_core.store import tables as t

MOST = 100


def request(pipeline: str = "p", days: int = 1, year: int = 2019) -> BackfillRequested:
    first = date(year, 1, 1)
    return BackfillRequested.model_validate(
        {"pipeline": pipeline, "from": first, "to": first + timedelta(days=days - 1)}
    )


def batch(*messages: Message, topic: Topic = Topic.BACKFILL_REQUESTS) -> list[Received]:
    return [received(topic, offset, f"b{offset}", message) for offset, message in enumerate(messages)]


def received(topic: Topic, offset: int, key: str, message: Message) -> Received:
    return Received(Record(str(topic), 0, offset, key.encode(), b"{}", {}, (), 0), key, message, f"id-{offset}")


def applied(definition: PipelineDefinition) -> Received:
    return received(Topic.PIPELINES, 0, definition.name, PipelineApplied(pipeline=definition))


class Planner:
    """A planner on one connection to the simulated store."""

    def __init__(self, conn: Any, *stored: PipelineDefinition) -> None:
        @contextmanager
        def connect() -> Iterator[Any]:
            yield conn

        settings = Settings(kafka_bootstrap_servers="none", postgres_dsn="dbname=none", max_plan_runs=MOST)
        context: Any = SimpleNamespace(
            settings=settings, topic_ids=None, engine=SimpleNamespace(connect=connect), partitions=4
        )
        self.conn, self.handler = conn, PlannerHandler(context)
        for each in stored:
            pipelines.put(conn, each)

    def step(self, messages: Sequence[Received]) -> list[Received]:
        """The messages that the next step takes on."""
        hold = self.handler.admit(messages).get(str(Topic.BACKFILL_REQUESTS))
        assert hold is None or hold == Hold(hold.offset, 0.0), "the rest does not wait longer than for this step"
        requests = [one for one in messages if one.record.topic == Topic.BACKFILL_REQUESTS]
        return requests if hold is None else [one for one in requests if one.record.offset < hold.offset]

    def steps(self, messages: Sequence[Received]) -> list[int]:
        """The number of messages in each step, until none is left."""
        sizes = []
        while messages:
            taken = self.step(messages)
            assert taken, "a step takes on at least one"
            sizes.append(len(taken))
            messages = messages[len(taken) :]
        return sizes

    def handle(self, *messages: Received) -> None:
        self.handler.handle(Transaction(self.conn, PLANNER, 0, 0, 900_000), messages)


def played(work: Any) -> Any:
    """What ``work`` returns, which it does on the simulated store."""
    (result,) = MemoryStore().play([("a", work)])
    return result


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of intervals that were computed, in order."""
    numbers: list[int] = []

    def counted(*given: Any) -> Any:
        result = find_intervals(*given)
        numbers.append(len(result.starts) if isinstance(result, Intervals) else 0)
        return result

    monkeypatch.setattr(planned, "find_intervals", counted)
    return numbers


NAMES = tuple(f"p{n}" for n in range(12))


@pytest.mark.parametrize(("days", "sizes"), [(60, [1] * 12), (40, [2] * 6), (100, [1] * 12), (8, [12])])
def test_a_step_has_no_more_intervals_than_one_request_may(days: int, sizes: list[int]) -> None:
    def work(conn: Any) -> Any:
        planner = Planner(conn, *(daily(name) for name in NAMES))
        return planner.steps(batch(*(request(name, days) for name in NAMES)))

    assert played(work) == sizes


def test_what_does_not_fit_is_not_computed_beyond_the_limit(found: list[int]) -> None:
    def work(conn: Any) -> Any:
        planner = Planner(conn, *(daily(name) for name in NAMES))
        return len(planner.step(batch(*(request(name, 60) for name in NAMES)))), found

    assert played(work) == [1, [60, 0]]


def test_no_transaction_is_open_while_intervals_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres would end it, and the request be refused."""
    options: list[str] = []

    def work(conn: Any) -> Any:
        def recorded(*, isolation_level: str) -> Any:
            options.append(isolation_level)
            return conn

        def checked(*given: Any) -> Any:
            assert options == ["AUTOCOMMIT"]
            return find_intervals(*given)

        monkeypatch.setattr(conn, "execution_options", recorded)
        monkeypatch.setattr(planned, "find_intervals", checked)
        return len(Planner(conn, daily()).step(batch(request(days=40))))

    assert played(work) == 1


def test_the_same_intervals_count_each_time_but_are_computed_once(found: list[int]) -> None:
    def work(conn: Any) -> Any:
        return len(Planner(conn, daily()).step(batch(*[request(days=40)] * 12))), found

    assert played(work) == [2, [40]]


def test_a_run_counts_once_more_for_each_deadline() -> None:
    def work(conn: Any) -> Any:
        alerts = [alert(f"a{n}", "LOGICAL_DATE", 60.0) for n in range(4)]
        return Planner(conn, daily(deadlines=alerts)).steps(batch(*(request(days=n) for n in (10, 10, 10, 28, 1))))

    assert played(work) == [2, 1, 1, 1]


def test_small_requests_share_one_step() -> None:
    def work(conn: Any) -> Any:
        requests = [request(year=2000 + n) for n in range(20)]
        others = [BackfillPauseRequested(), RunRetryRequested(intervals=("2019-01-01",))] * 100
        return Planner(conn, daily()).steps(batch(*requests, *others, *requests))

    assert played(work) == [240]


def test_a_request_that_is_too_large_alone_is_refused_in_a_step() -> None:
    def work(conn: Any) -> Any:
        planner = Planner(conn, daily())
        messages = batch(request(days=10), request(days=200), request(days=10))
        sizes = planner.steps(messages)
        planner.handler.admit(messages[1:])
        planner.handle(messages[1])
        return sizes, conn.execute(select(t.backfill_request.c.answer)).scalar_one()["reason"]

    assert played(work) == [[1, 2], "too_many_runs"]


@pytest.mark.parametrize(("seconds", "sizes"), [(3.0, [1] * 6), (0.4, [3, 3]), (0.01, [6])])
def test_a_step_ends_when_its_intervals_took_long(
    monkeypatch: pytest.MonkeyPatch, seconds: float, sizes: list[int]
) -> None:
    now = [0.0]

    def slow(*given: Any) -> Any:
        now[0] += seconds
        return find_intervals(*given)

    monkeypatch.setattr(planned, "find_intervals", slow)
    monkeypatch.setattr("backfill_planner.admission.time", SimpleNamespace(monotonic=lambda: now[0]))
    requests = [request(year=2000 + n) for n in range(6)]
    assert played(lambda conn: Planner(conn, daily()).steps(batch(*requests))) == sizes


def test_a_step_reads_few_definitions() -> None:
    names = [f"p{n}" for n in range(40)]

    def work(conn: Any) -> Any:
        planner = Planner(conn, *(daily(name) for name in names))
        return planner.steps(batch(*(request(name) for name in [*names, *names])))

    assert played(work) == [16] * 5


@pytest.mark.parametrize("large", [BackfillUndoRequested(undoes="x"), RunRetryRequested(all_failed=True)])
def test_what_may_write_a_whole_backfill_again_has_its_own_step(large: Message) -> None:
    def work(conn: Any) -> Any:
        return Planner(conn, daily()).steps(batch(large, large, request(), BackfillPauseRequested(), request(), large))

    assert played(work) == [1, 1, 3, 1]


def test_a_request_whose_pipeline_is_applied_in_the_same_batch_is_alone() -> None:
    """Its intervals are computed in the transaction, those of no others are."""

    def work(conn: Any) -> Any:
        planner = Planner(conn, daily("q"))
        first = [applied(daily("p")), *batch(request("p"), request("p", year=2020), request("q"))]
        second = [applied(daily("p")), *batch(request("q"), request("q"), request("p"))]
        taken = [len(planner.step(first)), len(planner.step(second))]
        planner.handler.admit(first)
        planner.handle(*first[:2])
        return taken, [row.pipeline for row in conn.execute(select(t.backfill.c.pipeline))]

    assert played(work) == [[1, 2], ["p"]]


def test_a_pipeline_that_is_changed_meanwhile_is_not_enumerated_in_the_transaction(found: list[int]) -> None:
    """Another planner applies it. The batch is admitted again; a single request is just planned."""

    def work(conn: Any) -> Any:
        planner = Planner(conn, daily())
        messages = batch(request(), request(year=2020))
        planner.handler.admit(messages)
        pipelines.put(conn, daily(schedule="@hourly"))
        with pytest.raises(Conflict, match="pipeline 'p' was changed"):
            planner.handle(*messages)
        before = list(found)
        planner.handler.admit(messages)
        planner.handle(*messages)
        pipelines.put(conn, daily(schedule="*/30 * * * *"))
        alone = received(Topic.BACKFILL_REQUESTS, 2, "b2", request(year=2021))
        planner.handler.admit([alone])
        pipelines.put(conn, daily())
        planner.handle(alone)
        return before, sorted(row.runs for row in conn.execute(select(t.backfill.c.runs)))

    assert played(work) == [[1, 1], [1, 24, 24]]
