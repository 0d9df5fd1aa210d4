"""What the launch of an attempt is derived from: the same at every host and at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Integer, RowMapping, Text, bindparam, select

from retrofill.domain.attempt import LIVE, AttemptMode, AttemptOutcome
from retrofill.domain.run import RunState
from retrofill.store.arrays import Arrays
from retrofill.store.states import constant, in_state
from retrofill.store.tables import attempt, backfill, run


@dataclass(frozen=True)
class Earlier:
    """An attempt that did not end by itself. Its runs have these positions in the backfill."""

    id: int
    backfill_id: str
    position: int
    runs: int

    def has_any(self, backfill_id: str, rows: Sequence[RowMapping]) -> bool:
        """Whether it had one of these runs."""
        positions = range(self.position, self.position + self.runs)
        return backfill_id == self.backfill_id and any(row["position"] in positions for row in rows)


_AGAIN = Arrays("again", backfill_id=Text, first=Integer, last=Integer)
_EARLIER = select(attempt.c.id, attempt.c.backfill_id, attempt.c.position, attempt.c.runs).where(
    attempt.c.backfill_id == _AGAIN.c.backfill_id,
    attempt.c.position <= _AGAIN.c.last,
    attempt.c.position + attempt.c.runs > _AGAIN.c.first,
    attempt.c.outcome != constant(AttemptOutcome.DONE),
    attempt.c.mode != constant(AttemptMode.PUBLISH),
)


def earlier(conn: Connection, again: Sequence[tuple[str, Sequence[RowMapping]]]) -> list[Earlier]:
    """Attempts that had runs of these batches, each of one backfill, and did not end by themselves."""
    if not again:
        return []
    given = _AGAIN.values(
        backfill_id=(id for id, _ in again),
        first=(min(row["position"] for row in rows) for _, rows in again),
        last=(max(row["position"] for row in rows) for _, rows in again),
    )
    # An attempt may have had runs of several batches.
    return [*dict.fromkeys(Earlier(*row) for row in conn.execute(_EARLIER, given))]


_GIVEN_BACKFILLS = (
    select(backfill).join(attempt, attempt.c.backfill_id == backfill.c.id).where(attempt.c.id == bindparam("attempt"))
)
_GIVEN_RUNS = (
    select(run)
    .where(run.c.attempt_id == bindparam("attempt"), in_state(run, RunState.STARTING, RunState.PUBLISHING))
    .order_by(run.c.position)
)
_GIVEN = select(attempt).where(attempt.c.id == bindparam("attempt"), in_state(attempt, *LIVE))


@dataclass(frozen=True)
class Given:
    """A live attempt, its backfill, and those of its runs that have not begun."""

    attempt: RowMapping
    backfill: RowMapping
    runs: list[RowMapping]


def given(conn: Connection, id: int) -> Given | None:
    """What its host needs to launch an attempt; ``None`` if it is over."""
    about = {"attempt": id}
    row = conn.execute(_GIVEN, about).mappings().one_or_none()
    runs = list(conn.execute(_GIVEN_RUNS, about).mappings())
    if row is None or not runs:
        return None
    return Given(row, conn.execute(_GIVEN_BACKFILLS, about).mappings().one(), runs)
