"""Queries from which the launch of an attempt is derived: the same at every host and at any time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
)

from retrofill.sdk.names import MAX_BATCH
from retrofill.states import LIVE, PROCESS_ENDED, TASK_TIMED_OUT, AttemptMode, AttemptOutcome, TaskState
from retrofill_core.domain.run import GOING, RunState
from retrofill_core.store.rows import Attempt, Backfill, Run, columns_of, present
from retrofill_core.store.runs import COLUMNS
from retrofill_core.store.sql import Arrays, constant, in_state, one_of
from retrofill_core.store.tables import attempt, backfill, run, task_run


@dataclass(frozen=True, slots=True)
class Earlier:
    """An attempt that had runs of a batch before. Its runs have these positions in the backfill."""

    id: int
    backfill_id: str
    position: int
    runs: int

    def has_any(self, backfill_id: str, runs: Sequence[Run]) -> bool:
        """Whether it had one of these runs."""
        positions = range(self.position, self.position + self.runs)
        return backfill_id == self.backfill_id and any(each.position in positions for each in runs)


_AGAIN = Arrays("again", backfill_id=Text, first=Integer, last=Integer)
_BEFORE = select(attempt.c.id, attempt.c.backfill_id, attempt.c.position, attempt.c.runs).where(
    attempt.c.backfill_id == _AGAIN.c.backfill_id,
    attempt.c.position <= _AGAIN.c.last,
    # Follows from the next one, which no index can use: all attempts of the backfill up to here would be read.
    attempt.c.position > _AGAIN.c.first - MAX_BATCH,
    attempt.c.position + attempt.c.runs > _AGAIN.c.first,
)
_EARLIER = _BEFORE.where(
    attempt.c.outcome != constant(AttemptOutcome.DONE),
    attempt.c.mode != constant(AttemptMode.PUBLISH),
)
# Live ones count: the output of some of their runs may be about to be accepted.
_UNPUBLISHED = _BEFORE.where(
    attempt.c.mode == constant(AttemptMode.RANGE),
    exists().where(
        run.c.backfill_id == attempt.c.backfill_id,
        run.c.position >= attempt.c.position,
        run.c.position < attempt.c.position + attempt.c.runs,
        in_state(run, *GOING),
        or_(run.c.attempt_id == attempt.c.id, run.c.accepted_attempt == attempt.c.id),
    ),
)


# What an attempt left to others by its own report has ended.
_PUBLISHERS = _BEFORE.where(attempt.c.outcome != constant(AttemptOutcome.DONE))


# Of backfills, by id.
Batches = Sequence[tuple[str, Sequence[Run]]]


def earlier(conn: Connection, again: Batches) -> list[Earlier]:
    """Attempts that had runs of these batches, each of one backfill, and did not end by themselves."""
    return _before(conn, _EARLIER, again)


def unpublished(conn: Connection, again: Batches) -> list[Earlier]:
    """Ranges that had runs of these batches, and of which other runs may still have to publish what they staged."""
    return _before(conn, _UNPUBLISHED, again)


def publishers(conn: Connection, again: Batches) -> list[Earlier]:
    """Attempts that may have tried to publish these accepted runs, and did not end by themselves."""
    return _before(conn, _PUBLISHERS, again)


def _before(conn: Connection, attempts: Select[Any], again: Batches) -> list[Earlier]:
    if not again:
        return []
    given = _AGAIN.values(
        backfill_id=(id for id, _ in again),
        first=(min(each.position for each in runs) for _, runs in again),
        last=(max(each.position for each in runs) for _, runs in again),
    )
    # An attempt may have had runs of several batches.
    return [*dict.fromkeys(Earlier(*row) for row in conn.execute(attempts, given))]


_ACCEPTED_ATTEMPTS = Arrays("accepted", id=BigInteger)
_ACCEPTED_RUNS = (
    select(*COLUMNS)
    .select_from(_ACCEPTED_ATTEMPTS.table.join(attempt, attempt.c.id == _ACCEPTED_ATTEMPTS.c.id))
    .join(
        run,
        and_(
            run.c.backfill_id == attempt.c.backfill_id,
            run.c.position >= attempt.c.position,
            run.c.position < attempt.c.position + attempt.c.runs,
            run.c.accepted_attempt == attempt.c.id,
        ),
    )
    .order_by(run.c.position)
)


def accepted_of(conn: Connection, attempt_ids: Collection[int]) -> dict[int, list[Run]]:
    """All runs whose output was accepted of these attempts, by attempt."""
    found: dict[int, list[Run]] = {id: [] for id in attempt_ids}
    for row in conn.execute(_ACCEPTED_RUNS, _ACCEPTED_ATTEMPTS.values(id=sorted(found))) if found else ():
        each = Run(*row)
        found[present(each.accepted_attempt)].append(each)
    return found


_USED = (
    select(task_run.c.run_id, task_run.c.task, func.max(task_run.c.try_number))
    .where(
        one_of(task_run.c.run_id, "runs"),
        in_state(task_run, TaskState.CANCELLED),
        task_run.c.error.op("->>", return_type=Text())(constant("type")).in_(
            [constant(TASK_TIMED_OUT), constant(PROCESS_ENDED)]
        ),
    )
    .group_by(task_run.c.run_id, task_run.c.task)
)


def tries_used(conn: Connection, run_ids: Collection[int]) -> dict[int, dict[str, int]]:
    """How many tries of tasks timed out and ended their drivers, by run and task.

    Such a task was about to be retried when its attempt ended.
    """
    found: dict[int, dict[str, int]] = {}
    for run_id, name, tries in conn.execute(_USED, {"runs": sorted(run_ids)}) if run_ids else ():
        found.setdefault(run_id, {})[name] = tries
    return found


_GIVEN_BACKFILLS = (
    select(*columns_of(Backfill, backfill))
    .join(attempt, attempt.c.backfill_id == backfill.c.id)
    .where(attempt.c.id == bindparam("attempt"))
)
_GIVEN_RUNS = (
    select(*COLUMNS)
    .where(run.c.attempt_id == bindparam("attempt"), in_state(run, RunState.STARTING, RunState.PUBLISHING))
    .order_by(run.c.position)
)
_GIVEN = select(*columns_of(Attempt, attempt)).where(attempt.c.id == bindparam("attempt"), in_state(attempt, *LIVE))


@dataclass(frozen=True, slots=True)
class Given:
    """A live attempt, its backfill, and those of its runs that have not begun."""

    attempt: Attempt
    backfill: Backfill
    runs: list[Run]


def given(conn: Connection, id: int) -> Given | None:
    """What its host needs to launch an attempt; ``None`` if it is over."""
    about = {"attempt": id}
    row = conn.execute(_GIVEN, about).one_or_none()
    runs = [Run(*each) for each in conn.execute(_GIVEN_RUNS, about)]
    if row is None or not runs:
        return None
    return Given(Attempt(*row), Backfill(*conn.execute(_GIVEN_BACKFILLS, about).one()), runs)
