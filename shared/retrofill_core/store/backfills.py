"""Backfills, their requests and their commands as rows.

A backfill counts its approvals, and a run notes for which review its output waits: it is approved once there are more
approvals than that. What somebody changed during a review, or what ran after it, waits for the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from retrofill_core.domain.backfill import ACTIVE, MACHINE, BackfillState, Budget, OnRunFailure, Spent, used_up
from retrofill_core.domain.run import GOING, RunState
from retrofill_core.store.conditions import count_failed, failed_since_resume, has_failed
from retrofill_core.store.progress import Announced, costs
from retrofill_core.store.rows import Backfill, Planned, columns_of
from retrofill_core.store.sql import constant, database_now, in_state, none_of, one_of
from retrofill_core.store.tables import backfill, backfill_command, backfill_request, run, run_cancel
from retrofill_core.store.transition import transition


def budget_of(row: Backfill | Announced) -> Budget | None:
    """The budget of a backfill, if any."""
    return Budget.of(row.budget_failed_runs, row.budget_core_hours, row.budget_until)


def budget_columns(budget: Budget | None) -> dict[str, Any]:
    """A budget as columns of the backfill's row."""
    return {f"budget_{name}": getattr(budget, name, None) for name in Budget.model_fields}


def budget_spent(conn: Connection, id: str) -> Spent:
    """What the backfill used until now."""
    used = costs(conn, [id]).get(id, {}).get("core_seconds")
    return Spent(count_failed(conn, id), used or 0.0, database_now(conn))


def budget_exceeded(conn: Connection, id: str, budget: Budget | None) -> str | None:
    """Which limit of ``budget`` the backfill has reached, for people. ``None``: no one."""
    return None if budget is None else used_up(budget, budget_spent(conn, id))


_failed = run.alias("failed_of_budget")


def budget_may_be_used_up() -> ColumnElement[bool]:
    """A condition on ``backfill``: its failed runs or the time used up its budget.

    Core-hours are compared less often, with its progress: their sum reads all attempts.
    """
    failed = select(_failed.c.id).where(_failed.c.backfill_id == backfill.c.id, has_failed(_failed))
    return and_(
        in_state(backfill, BackfillState.RUNNING),
        or_(
            backfill.c.budget_until <= func.clock_timestamp(),
            and_(
                backfill.c.budget_failed_runs.is_not(None),
                exists(failed.offset(backfill.c.budget_failed_runs - 1)),
            ),
        ),
    )


# Of a backfill: its accepted runs that wait for a lower review than this are published.
PUBLISHES_BELOW = case((backfill.c.review, backfill.c.approvals), else_=literal(1, Integer))
# Of a staged run and its backfill.
WAITS = and_(backfill.c.review, run.c.review >= backfill.c.approvals)
APPROVED = or_(~backfill.c.review, run.c.review < backfill.c.approvals)
_REVIEWED = select(backfill.c.id, backfill.c.approvals).where(one_of(backfill.c.id, "ids"), backfill.c.review)


def approvals(conn: Connection, ids: Collection[str]) -> dict[str, int]:
    """How often those of these backfills that are reviewed were approved."""
    return {row[0]: row[1] for row in conn.execute(_REVIEWED, {"ids": sorted(ids)})}


def staged_and(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether the backfill has such a staged run."""
    return (
        select(run.c.id).where(run.c.backfill_id == backfill.c.id, in_state(run, RunState.STAGED), condition).exists()
    )


_CHANGED = (
    select(run.c.interval_start)
    .where(
        run.c.backfill_id == bindparam("backfill"),
        in_state(run, RunState.STAGED),
        run.c.outputs.op("->>", return_type=Text())(constant("changed")).is_not(None),
    )
    .order_by(run.c.interval_start)
)


def reviewed_again(conn: Connection, backfill_id: str) -> list[datetime]:
    """Starts of the intervals whose output waits for a review again, because others changed what it would replace."""
    return list(conn.execute(_CHANGED, {"backfill": backfill_id}).scalars())


_PUT_OFF = (
    update(run)
    .where(
        run.c.backfill_id == bindparam("backfill"),
        in_state(run, RunState.STAGED),
        run.c.review < bindparam("next", type_=Integer),
        none_of(run.c.id, "ids"),
    )
    .values(review=bindparam("next", type_=Integer))
)


def put_off(conn: Connection, backfill_id: str, but: Collection[int], review: int) -> None:
    """Leave the staged runs of a backfill in review, which is locked, to the next ``review``, but for some.

    While a backfill is in review, nobody else changes these.
    """
    conn.execute(_PUT_OFF, {"backfill": backfill_id, "ids": sorted(but), "next": review})


COLUMNS = columns_of(Backfill, backfill)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The recorded reply to a request or command."""

    answer_type: str
    answer: dict[str, Any]
    body_hash: str | None = None


_OUTCOMES = select(
    *(backfill_request.c[name] for name in ("id", "answer_type", "answer", "body_hash")),
).where(one_of(backfill_request.c.id, "ids"))


def outcomes(conn: Connection, ids: Collection[str]) -> dict[str, Outcome]:
    """Recorded outcomes of requests, by backfill id."""
    return {id: Outcome(*outcome) for id, *outcome in conn.execute(_OUTCOMES, {"ids": list(ids)})}


def record_outcome(conn: Connection, id: str, outcome: Outcome) -> None:
    """Record the reply to a request. Raises ``IntegrityError`` if the request has an outcome."""
    conn.execute(
        insert(backfill_request).values(
            id=id, body_hash=outcome.body_hash, answer_type=outcome.answer_type, answer=outcome.answer
        )
    )


def command_outcome(conn: Connection, backfill_id: str, ce_id: str) -> Outcome | None:
    """The recorded reply to a command, or ``None``."""
    t = backfill_command
    row = conn.execute(
        select(t.c.answer_type, t.c.answer).where(t.c.backfill_id == backfill_id, t.c.ce_id == ce_id)
    ).first()
    return None if row is None else Outcome(row.answer_type, row.answer)


def record_command(conn: Connection, backfill_id: str, ce_id: str, outcome: Outcome) -> None:
    conn.execute(
        insert(backfill_command).values(
            backfill_id=backfill_id, ce_id=ce_id, answer_type=outcome.answer_type, answer=outcome.answer
        )
    )


# By whether to wait for the lock.
_LOCK = {
    wait: select(*columns_of(Planned, backfill))
    .where(backfill.c.id == bindparam("id"))
    .with_for_update(key_share=True, skip_locked=not wait)
    for wait in (False, True)
}


def lock(conn: Connection, id: str, *, wait: bool) -> Planned | None:
    """The backfill, locked; ``None`` if it does not exist or, without ``wait``, is locked."""
    row = conn.execute(_LOCK[wait], {"id": id}).first()
    return None if row is None else Planned(*row)


_ANY_RUN_CANCEL = exists().where(run_cancel.c.backfill_id == backfill.c.id)
_LOCK_FREE = (
    select(*COLUMNS, _ANY_RUN_CANCEL)
    .where(one_of(backfill.c.id, "ids"))
    .order_by(backfill.c.id)
    .with_for_update(key_share=True, skip_locked=True)
)


def lock_free(conn: Connection, ids: Collection[str]) -> tuple[dict[str, Backfill], list[str]]:
    """Backfills by id, locked in id order, and those in which users asked to cancel some runs.

    Locked ones are skipped.
    """
    rows = conn.execute(_LOCK_FREE, {"ids": sorted(ids)}).all()
    return {row[0]: Backfill(*row[:-1]) for row in rows}, [row[0] for row in rows if row[-1]]


_ACTIVE = (
    select(backfill.c.id, backfill.c.pipeline_no, backfill.c.state, backfill.c.budget_core_hours)
    .where(backfill.c.shard == bindparam("shard"), in_state(backfill, *ACTIVE))
    .order_by(backfill.c.id)
)
_STILL_ACTIVE = select(backfill.c.id).where(one_of(backfill.c.id, "ids"), in_state(backfill, *ACTIVE))


def active_of_shard(conn: Connection, shard: int) -> list[str]:
    """Ids of a shard's active backfills, in order."""
    return [each.id for each in active(conn, shard)]


@dataclass(frozen=True, slots=True)
class Active:
    """An active backfill, without a lock."""

    id: str
    pipeline_no: int
    state: str
    budget_core_hours: float | None


def active(conn: Connection, shard: int) -> list[Active]:
    """A shard's active backfills, by id."""
    return [Active(*row) for row in conn.execute(_ACTIVE, {"shard": shard})]


def still_active(conn: Connection, ids: Collection[str]) -> list[str]:
    """The active ones among ``ids``, read without a lock."""
    return list(conn.execute(_STILL_ACTIVE, {"ids": list(ids)}).scalars())


def move(conn: Connection, id: str, to: str, from_state: str, values: Mapping[str, Any] | None = None) -> bool:
    """Move the backfill from ``from_state`` to ``to``; false if it was in another state."""
    return bool(transition(conn, MACHINE, backfill, to, [{"id": id}], from_states=[from_state], values=values or {}))


def change(conn: Connection, id: str, values: Mapping[str, Any]) -> None:
    """Set columns of a backfill that is locked, other than its state."""
    conn.execute(update(backfill).where(backfill.c.id == id).values({**values}))


_MINE = run.c.backfill_id == backfill.c.id
_QUEUED = exists().where(_MINE, in_state(run, RunState.QUEUED))
_GOING = exists().where(_MINE, in_state(run, *GOING))
_EXECUTES = exists().where(_MINE, in_state(run, RunState.STARTING, RunState.RUNNING))
_HELD = staged_and(WAITS)
_PUBLISHES = exists().where(_MINE, in_state(run, RunState.PUBLISHING)) | staged_and(APPROVED)
# Something waits for a review, and the backfill does not already.
_BEFORE_REVIEW = _HELD & in_state(backfill, BackfillState.RUNNING, BackfillState.PAUSED)
_TO_BE_DECIDED = _STILL_ACTIVE.where(
    ~(_QUEUED | _GOING)
    | (_BEFORE_REVIEW & ~(_QUEUED | _EXECUTES | _PUBLISHES))
    | ((backfill.c.on_run_failure != constant(OnRunFailure.CONTINUE)) & failed_since_resume())
    | budget_may_be_used_up()
)
_RUN_CANCELLED = (
    select(run_cancel.c.run_id)
    .join(run, run.c.id == run_cancel.c.run_id)
    .where(run_cancel.c.backfill_id == backfill.c.id, in_state(run, RunState.CANCELLED))
    .exists()
)
_PROGRESS = select(
    _QUEUED,
    _GOING,
    _EXECUTES,
    exists().where(_MINE, has_failed(run)),
    _RUN_CANCELLED,
    failed_since_resume(),
    _HELD,
    _PUBLISHES,
).where(backfill.c.id == bindparam("id"))
_COUNTS = (
    select(run.c.state, func.count())
    .where(run.c.backfill_id == bindparam("backfill"), run.c.superseded_by.is_(None))
    .group_by(run.c.state)
)


def to_be_decided(conn: Connection, ids: Collection[str]) -> list[str]:
    """Active backfills whose runs have all ended, that are to be reviewed, or that a failed run or a budget pauses
    or cancels.

    Takes no lock.

    Every other one has an unfinished run, whose end triggers the next check.
    """
    return list(conn.execute(_TO_BE_DECIDED, {"ids": list(ids)}).scalars())


@dataclass(frozen=True, slots=True)
class Progress:
    """Summary of a backfill's runs."""

    any_unfinished: bool
    any_open: bool  # neither accepted nor ended
    any_failed: bool
    any_run_cancelled: bool  # by a request for this run
    failed_since_resume: bool
    any_held: bool  # its output waits for a review
    any_publishing: bool  # its output is published, or waits for a publisher


def progress(conn: Connection, id: str) -> Progress:
    """Progress of a locked backfill; each field is one probe of an index."""
    queued, going, executes, *others = conn.execute(_PROGRESS, {"id": id}).one()
    return Progress(queued or going, queued or executes, *others)


def run_counts(conn: Connection, id: str) -> dict[str, int]:
    """Number of runs by state, without superseded ones; states without runs are absent."""
    return dict(conn.execute(_COUNTS, {"backfill": id}).all())
