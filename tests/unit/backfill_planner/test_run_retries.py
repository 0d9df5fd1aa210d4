"""The rows that a retry writes, on the simulated store: new runs, what counts as accepted, and deadlines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.support.both_stores import DAY, START, end, make_backfill, put, start
from tests.support.definitions import alert, daily
from tests.support.sessions import MemoryStore

from backfill_planner.commands import carry_out
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import RunRetryRequested
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import PLANNER, Topic
from retrofill_core.deadlines import Subject, insert_deadlines
from retrofill_core.domain.deadline import Arming, DeadlineAlert, DeadlineState
from retrofill_core.domain.run import RunState
from retrofill_core.store import backfills, pipelines
from retrofill_core.store import tables as t
from retrofill_core.store.conditions import count_failed
from retrofill_core.store.sql import database_now

PARTITIONS = 4


def with_failures(conn: Any, failed: int, accepted: int, **definition: Any) -> None:
    """A backfill of three runs, the first of which failed."""
    make_backfill(conn, "b1")
    conn.execute(update(t.backfill).values(failed_before=accepted, definition=daily(**definition).as_json()))
    for id in range(1, failed + 1):
        start(conn, id, 1)
        end(conn, id, state=RunState.FAILED)


def retry(conn: Any, *days: int) -> tuple[Message, Transaction]:
    """Retry the runs of these days, or all failed ones."""
    dates = tuple((START + day * DAY).date() for day in days)
    tx = Transaction(conn, PLANNER, 0, 0, 900_000)
    answer = carry_out(tx, "b1", RunRetryRequested(all_failed=not dates, intervals=dates), None, PARTITIONS)
    return answer, tx


def played(*actions: Any) -> Any:
    """Actions of one session; returns the result of the last one."""
    return MemoryStore().play([put(), *(("a", action) for action in actions)])[-1]


@pytest.mark.parametrize(
    ("failed", "accepted", "days", "left", "still_accepted"),
    [
        # All failures were accepted: so is what is left of them.
        (3, 3, (0,), 2, 2),
        (3, 3, (), 0, 0),
        # One was not: as long as any is left, it may be that one.
        (3, 2, (0,), 2, 1),
        (3, 2, (0, 1), 1, 0),
        (2, 1, (), 0, 0),
        (2, 0, (1,), 1, 0),
    ],
)
def test_failures_that_were_not_accepted_go_on_to_count(
    failed: int, accepted: int, days: tuple[int, ...], left: int, still_accepted: int
) -> None:
    def counted(conn: Any) -> Any:
        (answer, _) = retry(conn, *days)
        before = conn.execute(select(t.backfill.c.failed_before)).scalar_one()
        return answer.type, count_failed(conn, "b1"), before, backfills.progress(conn, "b1").failed_since_resume

    said = played(lambda conn: with_failures(conn, failed, accepted), counted)
    assert said == ["RunsRetried", left, still_accepted, left > still_accepted]


def test_a_new_run_takes_the_place_of_the_old_one() -> None:
    def rows(conn: Any) -> Any:
        retry(conn, 1)
        names = ("id", "position", "state", "attempt", "attempt_id", "superseded_by", "lost_attempts")
        return [[row[name] for name in names] for row in conn.execute(select(t.run)).mappings()]

    said = played(lambda conn: with_failures(conn, 2, 0), rows)
    assert said == [
        [1, 0, "failed", 0, 1, None, 0],
        [2, 1, "failed", 0, 2, 4, 0],
        [3, 2, "queued", 0, None, None, 0],
        # With the attempt whose sessions are to be closed first.
        [4, 1, "queued", 0, 2, None, 0],
    ]


def test_the_new_run_has_deadlines_and_those_of_the_old_one_are_resolved() -> None:
    alerts = [
        alert("queued", "RUN_QUEUED_AT", 60, fire_on_failure=True),
        alert("logical", "LOGICAL_DATE", 60),
        alert("fixed", "FIXED_DATETIME", 0, at="2999-01-01T00:00:00Z"),
        alert("started", "RUN_STARTED_AT", 60),
    ]

    def armed(conn: Any) -> Any:
        with_failures(conn, 1, 0, deadlines=alerts)
        now = database_now(conn)
        late = DeadlineAlert.model_validate(alerts[0])
        arming = Arming(now + timedelta(seconds=60), DeadlineState.ARMED)
        (old,) = insert_deadlines(conn, "b1", "p", late, [Subject(1, arming)], PARTITIONS)
        (_, tx) = retry(conn)
        new = conn.execute(select(t.deadline).where(t.deadline.c.run_id == 4).order_by(t.deadline.c.id)).mappings()
        hints = [(each.topic, each.key) for each in tx.outgoing]
        return [
            [(row["alert"], row["state"]) for row in new],
            (str(Topic.DEADLINES), str(old.id).encode()) in hints,
        ]

    said = played(armed)
    assert said == [[["queued", "armed"], ["logical", "void"], ["fixed", "armed"]], True]


def code(letter: str) -> dict[str, Any]:
    return {"file": "/p.py", "attribute": "p", "sha256": letter * 64, "root": "/"}


IN_PLACE = {"file": "/p.py", "attribute": "p"}


@pytest.mark.parametrize(
    ("planned", "applied", "follows", "latest", "reply", "follows_then"),
    [
        (code("a"), code("a"), False, False, {"code_sha256": "a" * 64}, False),
        (code("a"), code("b"), False, False, {"code_sha256": "a" * 64, "newer_code_sha256": "b" * 64}, False),
        (code("a"), code("b"), False, True, {"code_sha256": "b" * 64, "latest_code": True}, True),
        (code("a"), code("b"), True, False, {"code_sha256": "b" * 64, "latest_code": True}, True),
        (IN_PLACE, code("b"), False, False, {"newer_code_sha256": "b" * 64}, False),
        (code("a"), IN_PLACE, False, True, {"latest_code": True}, True),
    ],
)
def test_a_retry_keeps_the_code_of_the_plan_unless_the_latest_is_asked_for(
    planned: Any, applied: Any, follows: bool, latest: bool, reply: dict[str, Any], follows_then: bool
) -> None:
    def retried(conn: Any) -> Any:
        with_failures(conn, 1, 0, code=planned)
        conn.execute(update(t.backfill).values(code_follows=follows))
        pipelines.put(conn, daily(code=applied))
        tx = Transaction(conn, PLANNER, 0, 0, 900_000)
        request = RunRetryRequested(all_failed=True, latest_code=latest)
        answer = carry_out(tx, "b1", request, None, PARTITIONS)
        said = answer.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        about = ("code_sha256", "latest_code", "newer_code_sha256")
        return {name: said[name] for name in about if name in said}, conn.execute(
            select(t.backfill.c.code_follows)
        ).scalar_one()

    assert played(retried) == [reply, follows_then]


@pytest.mark.parametrize("latest", [False, True])
def test_a_retried_undo_runs_no_code_of_the_pipeline(latest: bool) -> None:
    def retried(conn: Any) -> Any:
        with_failures(conn, 1, 0)
        conn.execute(update(t.backfill).values(undoes="b0"))
        tx = Transaction(conn, PLANNER, 0, 0, 900_000)
        answer = carry_out(tx, "b1", RunRetryRequested(all_failed=True, latest_code=latest), None, PARTITIONS)
        return answer.type, conn.execute(select(t.backfill.c.code_follows)).scalar_one(), count_failed(conn, "b1")

    assert played(retried) == (["BackfillCommandRejected", False, 1] if latest else ["RunsRetried", False, 0])
