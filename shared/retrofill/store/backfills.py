"""Backfills, their requests and their commands as rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, exists, func, insert, select

from retrofill.domain.backfill import ACTIVE, MACHINE, OnRunFailure
from retrofill.domain.run import RunState
from retrofill.store.failures import failed_since_resume
from retrofill.store.tables import backfill, backfill_command, backfill_request, run
from retrofill.store.transition import transition


@dataclass(frozen=True)
class Outcome:
    """What was answered to a request or command."""

    answer_type: str
    answer: dict[str, Any]
    body_hash: str | None = None


def outcomes(conn: Connection, ids: Collection[str]) -> dict[str, Outcome]:
    """Recorded outcomes of requests, by backfill id."""
    rows = conn.execute(select(backfill_request).where(backfill_request.c.id == func.any(list(ids)))).mappings()
    return {row["id"]: Outcome(row["answer_type"], row["answer"], row["body_hash"]) for row in rows}


def record_outcome(conn: Connection, id: str, outcome: Outcome) -> None:
    """Record what was answered. Raises an integrity error where there is an outcome already."""
    conn.execute(
        insert(backfill_request).values(
            id=id, body_hash=outcome.body_hash, answer_type=outcome.answer_type, answer=outcome.answer
        )
    )


def command_outcome(conn: Connection, backfill_id: str, ce_id: str) -> Outcome | None:
    """What was answered to a command."""
    t = backfill_command
    row = conn.execute(
        select(t.c.answer_type, t.c.answer).where(t.c.backfill_id == backfill_id, t.c.ce_id == ce_id)
    ).first()
    return None if row is None else Outcome(row.answer_type, row.answer)


def record_command(conn: Connection, backfill_id: str, ce_id: str, outcome: Outcome) -> None:
    """Record what was answered to a command."""
    conn.execute(
        insert(backfill_command).values(
            backfill_id=backfill_id, ce_id=ce_id, answer_type=outcome.answer_type, answer=outcome.answer
        )
    )


def lock(conn: Connection, id: str, *, wait: bool) -> RowMapping | None:
    """The backfill's row, locked; ``None`` where there is none or, without ``wait``, where somebody else has it."""
    return (
        conn.execute(select(backfill).where(backfill.c.id == id).with_for_update(key_share=True, skip_locked=not wait))
        .mappings()
        .first()
    )


def lock_free(conn: Connection, ids: Collection[str]) -> dict[str, RowMapping]:
    """Backfills by id, locked in the order of their ids; without those that somebody else has locked.

    Without their definitions, which never change and may be large.
    """
    rows = conn.execute(
        select(*(column for column in backfill.c if column is not backfill.c.definition))
        .where(backfill.c.id == func.any(sorted(ids)))
        .order_by(backfill.c.id)
        .with_for_update(key_share=True, skip_locked=True)
    ).mappings()
    return {row["id"]: row for row in rows}


def active_of_shard(conn: Connection, shard: int) -> list[str]:
    """Ids of the active backfills of a shard."""
    return list(
        conn.execute(select(backfill.c.id).where(backfill.c.shard == shard, backfill.c.state.in_(ACTIVE))).scalars()
    )


@dataclass(frozen=True)
class Active:
    """An active backfill."""

    id: str
    pipeline_no: int
    state: str


def active(conn: Connection, shard: int) -> list[Active]:
    """The active backfills of a shard."""
    rows = conn.execute(
        select(backfill.c.id, backfill.c.pipeline_no, backfill.c.state)
        .where(backfill.c.shard == shard, backfill.c.state.in_(ACTIVE))
        .order_by(backfill.c.id)
    )
    return [Active(*row) for row in rows]


def still_active(conn: Connection, ids: Collection[str]) -> list[str]:
    """Those that are active; reading takes no lock."""
    return list(
        conn.execute(
            select(backfill.c.id).where(backfill.c.id == func.any(list(ids)), backfill.c.state.in_(ACTIVE))
        ).scalars()
    )


def move(conn: Connection, id: str, to: str, from_state: str, values: Mapping[str, Any] | None = None) -> bool:
    """Change the backfill's state along an edge; whether it landed (it was in ``frm``)."""
    return bool(transition(conn, MACHINE, backfill, to, [{"id": id}], from_states=[from_state], values=values or {}))


def to_be_decided(conn: Connection, ids: Collection[str]) -> list[str]:
    """Active ones whose runs have all ended, or that a failed run may pause or cancel; reading takes no lock.

    One that is left out has a run whose end is still to come, and is told of with it.
    """
    mine = run.c.backfill_id == backfill.c.id
    unfinished = exists().where(mine, run.c.state == RunState.QUEUED) | exists().where(mine, run.c.slot.is_not(None))
    return list(
        conn.execute(
            select(backfill.c.id).where(
                backfill.c.id == func.any(list(ids)),
                backfill.c.state.in_(ACTIVE),
                ~unfinished | ((backfill.c.on_run_failure != OnRunFailure.CONTINUE) & failed_since_resume()),
            )
        ).scalars()
    )


@dataclass(frozen=True)
class Progress:
    """What the runs of a backfill say."""

    any_unfinished: bool
    any_failed: bool
    failed_since_resume: bool


def progress(conn: Connection, id: str) -> Progress:
    """How far the runs of a locked backfill are; each answer is one look into a partial index."""
    mine = run.c.backfill_id == backfill.c.id
    queued, live, any_failed, failed_since = conn.execute(
        select(
            exists().where(mine, run.c.state == RunState.QUEUED),
            exists().where(mine, run.c.slot.is_not(None)),
            exists().where(mine, run.c.state == RunState.FAILED),
            failed_since_resume(),
        ).where(backfill.c.id == id)
    ).one()
    return Progress(queued or live, any_failed, failed_since)


def run_counts(conn: Connection, id: str) -> dict[str, int]:
    """Runs of a backfill by state."""
    rows = conn.execute(select(run.c.state, func.count()).where(run.c.backfill_id == id).group_by(run.c.state)).all()
    return dict(rows)
