"""Very large plans: each statement writes a bounded number of rows, and each deadline equals one
that is armed alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import Engine
from tests.support.definitions import alert, daily
from tests.support.installation import PARTITIONS, Installation
from tests.support.statements import Recorded, recorded
from tests.support.tiers import some

from backfill_planner.answers import Request
from backfill_planner.requests import KnownIntervals, answer_request
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.transaction import Transaction, shard_transaction
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.base import decode
from retrofill_core.contract.deadlines import DeadlineArmed
from retrofill_core.contract.topics import PLANNER, Topic, partition_of
from retrofill_core.deadlines import NEAR_SECONDS
from retrofill_core.domain.deadline import DeadlineAlert, DeadlineState, arm
from retrofill_core.store import pipelines
from retrofill_core.store.engine import make_engine
from retrofill_core.store.sql import CHUNK

RUNS = CHUNK + 2_000
TICK = timedelta(minutes=10)
LAST = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
DAYS = timedelta(days=40).total_seconds()
ALERTS = [
    alert("queued", "RUN_QUEUED_AT", 60.5),
    # Half of the moments are past, and few are near.
    alert("logical", "LOGICAL_DATE", DAYS),
    alert("logical-past", "LOGICAL_DATE", DAYS, fire_if_past=True),
    alert("edge", "LOGICAL_DATE", -3_155_760_000.0, fire_if_past=True),
    alert("fixed", "FIXED_DATETIME", 1.25, at="2100-01-01T00:00:00+00:00"),
    alert("fixed-past", "FIXED_DATETIME", -1.25, at="2001-01-01T00:00:00+00:00"),
]


@pytest.fixture
def engine(installation: Installation) -> Iterator[Engine]:
    """An engine with the planner's role."""
    made = make_engine(installation.settings.dsn_of(PLANNER.name), "planner")
    yield made
    made.dispose()


def planned(
    installation: Installation, engine: Engine, alerts: list[dict[str, Any]], *, backwards: bool
) -> tuple[Transaction, Recorded]:
    """Plan one backfill. Returns its transaction and the statements sent."""
    name = f"p-{backwards}"
    with shard_transaction(engine, PLANNER, 0, 0, 900_000) as tx:
        pipelines.put(tx.conn, daily(name, schedule="*/10 * * * *", deadlines=alerts))
    with engine.connect() as conn:
        stored = pipelines.find(conn, {name})[name]
    first = LAST - (RUNS - 1) * TICK
    body = BackfillRequested.model_validate(
        {"pipeline": name, "from": first.isoformat(), "to": LAST.isoformat(), "run_backwards": backwards}
    )
    request = Request("b", body, Record(Topic.BACKFILL_REQUESTS, 0, 0, b"b", b"{}", {}, (), 0))
    intervals = KnownIntervals(RUNS)
    with recorded(engine) as found, shard_transaction(engine, PLANNER, 0, 0, 900_000) as tx:
        outcome = answer_request(tx, request, {}, stored, intervals, installation.settings, PARTITIONS)
    assert outcome.answer_type == "BackfillPlanned"
    return tx, found


@pytest.mark.parametrize("backwards", some([False, True], True))
def test_deadlines_of_a_large_plan(installation: Installation, engine: Engine, backwards: bool) -> None:
    tx, found = planned(installation, engine, ALERTS, backwards=backwards)
    most = max(_most_rows(statement.parameters) for statement in found.statements)
    assert most == CHUNK
    now = installation.value("SELECT requested_at FROM backfill")
    starts = dict(_pairs(installation.query("SELECT id, interval_start FROM run")))
    assert len(starts) == RUNS
    hints = [decode(each.value) for each in tx.outgoing if each.topic == Topic.DEADLINES]
    hinted = {hint.deadline_id for hint in hints if isinstance(hint, DeadlineArmed)}
    assert len(hinted) == len(hints)
    for each in map(DeadlineAlert.model_validate, ALERTS):
        rows = installation.query(
            "SELECT id, shard, run_id, due_at, state, reason, decided_at FROM deadline WHERE alert = %s", each.name
        )
        assert sorted(row["run_id"] for row in rows) == sorted(starts)
        reference = {"RUN_QUEUED_AT": now, "FIXED_DATETIME": each.at}.get(each.reference)
        for row in rows:
            alone = arm(each, reference or starts[row["run_id"]], now)
            assert (row["due_at"], row["state"], row["reason"]) == (alone.due_at, alone.state, alone.reason)
            assert (row["decided_at"] is not None) == (row["state"] == "void")
            assert row["shard"] == partition_of(str(row["id"]), PARTITIONS)
        near = now + timedelta(seconds=NEAR_SECONDS)
        of_shard: dict[int, datetime] = {}
        for row in rows:
            if row["state"] == DeadlineState.ARMED and row["due_at"] <= near:
                of_shard[row["shard"]] = min(row["due_at"], of_shard.get(row["shard"], near))
        mine = {row["shard"]: row["due_at"] for row in rows if row["id"] in hinted}
        # One hint per shard, for its earliest deadline.
        assert mine == of_shard
        assert sum(row["id"] in hinted for row in rows) == len(of_shard)


# Simulates a slow machine: a statement that inserts many runs exceeds the transaction timeout.
_SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT count(*) FROM inserted) > 1000 THEN PERFORM pg_sleep(60); END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER slow AFTER INSERT ON run REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""


@pytest.mark.long
def test_a_plan_that_does_not_end_in_time_is_refused_and_keeps_nobody_waiting(installation: Installation) -> None:
    with psycopg.connect(installation.settings.dsn_of("owner"), autocommit=True) as conn:
        conn.execute("SET search_path = retrofill")
        conn.execute(_SLOW.encode())
    dsns = json.loads(installation.environment()["RETROFILL_POSTGRES_SERVICE_DSNS"])
    dsns[PLANNER.name] = make_conninfo(dsns[PLANNER.name], options="-c transaction_timeout=3s")
    installation.start("backfill-planner", RETROFILL_POSTGRES_SERVICE_DSNS=json.dumps(dsns))
    installation.apply(daily(schedule="* * * * *"))
    # All in one shard, so they are handled in order.
    ids = (id for n in range(1000) if partition_of(id := f"b-{n}", PARTITIONS) == 1)
    large = installation.request("p", "2020-01-01", "2020-01-10", id=next(ids))
    small = installation.request("p", "2021-01-01T00:00Z", "2021-01-01T00:09Z", id=next(ids))
    answer = installation.outcome(large).body
    assert (answer["type"], answer["reason"]) == ("BackfillRejected", "too_many_runs")
    assert "14,400 data intervals" in answer["message"] and "split" in answer["message"]
    assert installation.outcome(small).body["runs"] == 10
    assert installation.events(Topic.DEAD_LETTERS) == []


def _most_rows(parameters: Any) -> int:
    values = parameters.values() if isinstance(parameters, dict) else parameters or ()
    return max((len(value) for value in values if isinstance(value, list)), default=0)


def _pairs(rows: list[dict[str, Any]]) -> Iterator[tuple[int, datetime]]:
    return ((row["id"], row["interval_start"]) for row in rows)
