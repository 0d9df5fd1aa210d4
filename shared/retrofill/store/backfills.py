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
    """The recorded reply to a request or command."""

    answer_type: str
    answer: dict[str, Any]
    body_hash: str | None = None


def outcomes(conn: Connection, ids: Collection[str]) -> dict[str, Outcome]:
    """Recorded outcomes of requests, by backfill id."""
    rows = conn.execute(select(backfill_request).where(backfill_request.c.id == func.any(list(ids)))).mappings()
    return {row["id"]: Outcome(row["answer_type"], row["answer"], row["body_hash"]) for row in rows}


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


def lock(conn: Connection, id: str, *, wait: bool) -> RowMapping | None:
    """The backfill's row, locked; ``None`` if it does not exist or, without ``wait``, is locked."""
    return (
        conn.execute(select(backfill).where(backfill.c.id == id).with_for_update(key_share=True, skip_locked=not wait))
        .mappings()
        .first()
    )


def lock_free(conn: Connection, ids: Collection[str]) -> dict[str, RowMapping]:
    """Backfills by id, locked in id order. Locked ones are skipped.

    Rows omit the definition, which never changes and may be large.
    """
    rows = conn.execute(
        select(*(column for column in backfill.c if column is not backfill.c.definition))
        .where(backfill.c.id == func.any(sorted(ids)))
        .order_by(backfill.c.id)
        .with_for_update(key_share=True, skip_locked=True)
    ).mappings()
    return {row["id"]: row for row in rows}


def active_of_shard(conn: Connection, shard: int) -> list[str]:
    """Ids of a shard's active backfills, in no order."""
    return list(
        conn.execute(select(backfill.c.id).where(backfill.c.shard == shard, backfill.c.state.in_(ACTIVE))).scalars()
    )


@dataclass(frozen=True)
class Active:
    """An active backfill, without a lock."""

    id: str
    pipeline_no: int
    state: str


def active(conn: Connection, shard: int) -> list[Active]:
    """A shard's active backfills, by id."""
    rows = conn.execute(
        select(backfill.c.id, backfill.c.pipeline_no, backfill.c.state)
        .where(backfill.c.shard == shard, backfill.c.state.in_(ACTIVE))
        .order_by(backfill.c.id)
    )
    return [Active(*row) for row in rows]


def still_active(conn: Connection, ids: Collection[str]) -> list[str]:
    """The active ones among ``ids``, read without a lock."""
    return list(
        conn.execute(
            select(backfill.c.id).where(backfill.c.id == func.any(list(ids)), backfill.c.state.in_(ACTIVE))
        ).scalars()
    )


def move(conn: Connection, id: str, to: str, from_state: str, values: Mapping[str, Any] | None = None) -> bool:
    """Move the backfill from ``from_state`` to ``to``; false if it was in another state."""
    return bool(transition(conn, MACHINE, backfill, to, [{"id": id}], from_states=[from_state], values=values or {}))


def to_be_decided(conn: Connection, ids: Collection[str]) -> list[str]:
    """Active backfills whose runs have all ended, or that a failed run pauses or cancels.

    Takes no lock.

    Every other one has an unfinished run, whose end triggers the next check.
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
    """Summary of a backfill's runs."""

    any_unfinished: bool
    any_failed: bool
    failed_since_resume: bool


def progress(conn: Connection, id: str) -> Progress:
    """Progress of a locked backfill; each field is one probe of a partial index."""
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
    """Number of runs by state; states without runs are absent."""
    rows = conn.execute(select(run.c.state, func.count()).where(run.c.backfill_id == id).group_by(run.c.state)).all()
    return dict(rows)
