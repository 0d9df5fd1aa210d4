"""Incident: five simultaneous requests for three years of one daily pipeline. One was created; four
failed in two different ways, and rows that they left behind (2 of 1096) blocked the next request.

Here one is planned, four are rejected with its id, and the four leave nothing but their outcomes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg import sql
from tests.support.definitions import daily
from tests.support.events import Event
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.servers import Servers

from retrofill_core.bus.clients import producer
from retrofill_core.bus.envelope import headers_of, wire_headers
from retrofill_core.contract.backfills import BackfillCancelRequested, BackfillRequested
from retrofill_core.contract.topics import PLANNER, Topic, partition_of

PLANNERS = 3
CLIENTS = 5
DAYS = 1096
THREE_YEARS = {"from": "2020-01-01", "to": "2022-12-31", "max_active_runs": 1}
PLANNED, REJECTED = "BackfillPlanned", "BackfillRejected"


@pytest.fixture(scope="module")
def planners(servers: Servers) -> Iterator[Installation]:
    """An installation with three planners, each of which owns shards."""
    installation = servers.installation()
    try:
        for _ in range(PLANNERS):
            installation.start("backfill-planner")
        owners = "SELECT count(DISTINCT owner) FROM backfill_planner_shard"
        until(lambda: installation.value(owners) == PLANNERS, "each planner has a shard")
        yield installation
    finally:
        installation.close()


def ids_on_every_partition(word: str) -> list[str]:
    """An id for each client. Every partition has at least one."""
    wanted = [n % PARTITIONS for n in range(CLIENTS)]
    found: list[str] = []
    for partition in wanted:
        candidates = (f"{word}-{n}" for n in range(1000))
        found.append(next(c for c in candidates if partition_of(c, PARTITIONS) == partition and c not in found))
    return found


def publish_at_once(
    installation: Installation, requests: Sequence[tuple[str, dict[str, Any]]], partitions: Sequence[int] | None = None
) -> list[str]:
    """Publish each request from its own client at the same moment, on its key's partition unless
    ``partition`` is given. Returns their ``ce_id``.
    """
    topic = f"{installation.settings.topic_prefix}{Topic.BACKFILL_REQUESTS}"
    barrier = threading.Barrier(len(requests))

    def client(n: int) -> str:
        id, body = requests[n]
        message = BackfillRequested.model_validate(body)
        headers = headers_of(message, f"client-{n}")
        sender = producer(installation.settings, f"client-{n}")
        sender.list_topics(topic, timeout=20)
        to: dict[str, Any] = {} if partitions is None else {"partition": partitions[n]}
        barrier.wait(20)
        sender.produce(topic, key=id, value=message.encode(), headers=wire_headers(headers), **to)
        assert sender.flush(20) == 0
        return headers["ce_id"]

    with ThreadPoolExecutor(len(requests)) as clients:
        return list(clients.map(client, range(len(requests))))


@contextmanager
def all_planning_at_once(installation: Installation) -> Iterator[None]:
    """Block writes of backfill rows until every planner has begun planning and waits, for this lock
    or another planner's.
    """
    waiting = """
    SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE NOT l.granted AND a.datname = current_database() AND a.usename = %s
    """
    with installation.session() as gate:
        # Reads and row locks still work; inserts wait.
        gate.execute("LOCK TABLE backfill IN SHARE ROW EXCLUSIVE MODE")
        yield
        until(lambda: installation.value(waiting, PLANNER.role) == PLANNERS, "every planner waits")


def wait_until_answered(installation: Installation, ids: Sequence[str]) -> None:
    """Wait until all requests are decided and their replies published."""
    decided = "SELECT count(*) FROM backfill_request WHERE id = ANY(%s)"
    until(lambda: installation.value(decided, list(ids)) == len(set(ids)), "all are decided")
    installation.wait_published()


def outcomes(installation: Installation, ce_ids: Sequence[str]) -> list[Event]:
    """The replies to these messages, as a subscriber sees them."""
    return [e for e in installation.events(Topic.BACKFILL_EVENTS) if e.body.get("in_reply_to") in ce_ids]


def rows_about(installation: Installation, ids: Sequence[str]) -> dict[str, int]:
    """The number of rows per table that concern these backfill ids; empty tables are omitted."""
    columns = installation.query(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'retrofill' AND "
        "(column_name = 'backfill_id' OR table_name IN ('backfill', 'backfill_request') AND column_name = 'id')"
    )
    assert {"backfill", "backfill_request", "backfill_interval", "run", "deadline"} <= {
        column["table_name"] for column in columns
    }
    found = {}
    for column in columns:
        count = sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY(%s)").format(
            sql.Identifier(column["table_name"]), sql.Identifier(column["column_name"])
        )
        found[column["table_name"]] = installation.value(count.as_string(), list(ids))
    return {table: count for table, count in found.items() if count}


def test_one_of_five_is_planned_and_nothing_is_left_of_the_others(planners: Installation) -> None:
    planners.apply(daily("raced"))
    ids = ids_on_every_partition("raced")
    request = {"pipeline": "raced"} | THREE_YEARS
    with all_planning_at_once(planners):
        ce_ids = publish_at_once(planners, [(id, request) for id in ids])
    wait_until_answered(planners, ids)

    answers = outcomes(planners, ce_ids)
    assert Counter(e.body["in_reply_to"] for e in answers) == Counter(ce_ids)
    (winner,) = [e.body for e in answers if e.body["type"] == PLANNED]
    assert (winner["runs"], winner["max_active_runs"]) == (DAYS, 1)
    rejected = [e.body for e in answers if e.body["type"] == REJECTED]
    assert {r["backfill_id"] for r in rejected} == set(ids) - {winner["backfill_id"]}
    assert [(r["reason"], r["conflicting_backfill_id"]) for r in rejected] == [("overlap", winner["backfill_id"])] * 4
    losers = [r["backfill_id"] for r in rejected]
    assert rows_about(planners, losers) == {"backfill_request": 4}
    assert rows_about(planners, [winner["backfill_id"]]) == {
        "backfill": 1,
        "backfill_request": 1,
        "backfill_interval": DAYS,
        "run": DAYS,
    }
    assert planners.events(Topic.DEAD_LETTERS) == []

    # The losers stay rejected under their ids, and cancelling the winner frees the range.
    starter = planners.start("instant-starter", RETROFILL_DRIVER_SLOTS="4", INSTANT_SECONDS="3600")
    until(lambda: planners.runs_by_state(winner["backfill_id"]).get("running") == 1, "one run is live")
    planners.publish(Topic.BACKFILL_REQUESTS, winner["backfill_id"], BackfillCancelRequested())
    assert planners.wait_state(winner["backfill_id"], "cancelled", "failed", "succeeded") == "cancelled"
    assert planners.runs_by_state(winner["backfill_id"]) == {"cancelled": DAYS}
    starter.stop()
    (repeat,) = publish_at_once(planners, [(losers[0], request)])
    assert planners.wait_answer(repeat).body["type"] == REJECTED
    (again,) = publish_at_once(planners, [("raced-again", request)])
    accepted = planners.wait_answer(again).body
    assert (accepted["type"], accepted["runs"]) == (PLANNED, DAYS)
    assert planners.runs_by_state("raced-again") == {"queued": DAYS}


def test_five_years_at_once_are_all_planned(planners: Installation) -> None:
    planners.apply(daily("years"))
    years = {2018: 365, 2019: 365, 2020: 366, 2021: 365, 2022: 365}
    runs_of = dict(zip(ids_on_every_partition("year"), years.values(), strict=True))
    requests = [
        (id, {"pipeline": "years", "from": f"{year}-01-01", "to": f"{year}-12-31"})
        for id, year in zip(runs_of, years, strict=True)
    ]
    with all_planning_at_once(planners):
        ce_ids = publish_at_once(planners, requests)
    wait_until_answered(planners, list(runs_of))
    answers = outcomes(planners, ce_ids)
    assert Counter(e.body["type"] for e in answers) == {PLANNED: 5}
    assert {e.key: e.body["runs"] for e in answers} == runs_of
    for id, runs in runs_of.items():
        assert planners.runs_by_state(id) == {"queued": runs}


@pytest.mark.parametrize(
    ("id", "partitions"),
    [("same-partition", None), ("any-partition", [0, 1, 2, 3, 0])],
    ids=["clients that hash alike", "clients that hash as they like"],
)
def test_one_request_five_times_at_once_has_one_outcome(
    planners: Installation, id: str, partitions: list[int] | None
) -> None:
    planners.apply(daily(id))
    ce_ids = publish_at_once(planners, [(id, {"pipeline": id} | THREE_YEARS)] * CLIENTS, partitions)
    for ce_id in ce_ids:
        planners.wait_answer(ce_id)
    planners.wait_published()
    answers = [e for e in planners.events(Topic.BACKFILL_EVENTS) if e.key == id]
    assert Counter(e.body.pop("in_reply_to") for e in answers) == Counter(ce_ids)
    assert all(e.body == answers[0].body for e in answers)
    assert (answers[0].body["type"], answers[0].body["runs"]) == (PLANNED, DAYS)
    assert {e.partition for e in answers} == {partition_of(id, PARTITIONS)}
    assert rows_about(planners, [id]) == {"backfill": 1, "backfill_request": 1, "backfill_interval": DAYS, "run": DAYS}
    assert planners.value("SELECT count(*) FROM backfill WHERE pipeline = %s", id) == 1
