"""Durations of a pipeline's last attempts, from which the size of the next one follows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Text, exists, func, literal, or_, select, true
from sqlalchemy.sql.selectable import LateralFromClause

from retrofill.states import AttemptMode, AttemptOutcome
from retrofill_core.domain.batch_size import Past
from retrofill_core.domain.run import RunState
from retrofill_core.domain.undo import UNDO_MODULE
from retrofill_core.store.sql import Arrays, constant, in_state
from retrofill_core.store.tables import attempt, run

# Attempts of a pipeline that are read. Enough to even out some that were unusual.
RECENT = 30
_OF = Arrays("of", no=BigInteger)
# Its runs succeeded in order, and the first one that fails ends it: the last one tells of all.
_COMPLETE = exists().where(
    run.c.backfill_id == attempt.c.backfill_id,
    run.c.position == attempt.c.position + attempt.c.runs - 1,
    or_(
        (run.c.attempt_id == attempt.c.id) & in_state(run, RunState.SUCCEEDED),
        # Held for a review, after which another attempt publishes it.
        (run.c.accepted_attempt == attempt.c.id) & run.c.staged_at.is_not(None),
    ),
    attempt.c.outcome == constant(AttemptOutcome.DONE),
)


# Attempts that undo others, which do not execute the pipeline's tasks.
_module = attempt.c.code.op("->>", return_type=Text())(constant("module"))
NO_UNDO = or_(_module.is_(None), _module != literal(UNDO_MODULE, Text))


def last_ended(of: Arrays, most: int, *columns: ColumnElement[Any], which: ColumnElement[bool]) -> LateralFromClause:
    """The last attempts that ended and did more than publish, of each pipeline (``no``) in ``of``."""
    return (
        select(*columns)
        .where(
            attempt.c.pipeline_no == of.c.no,
            attempt.c.ended_at.is_not(None),
            attempt.c.mode != constant(AttemptMode.PUBLISH),
            which,
        )
        .order_by(attempt.c.ended_at.desc())
        .limit(most)
        .lateral("last")
    )


_LAST = last_ended(
    _OF,
    RECENT,
    attempt.c.mode,
    attempt.c.code,
    attempt.c.runs,
    # Without a begin it was not executed.
    func.extract("epoch", attempt.c.ended_at - attempt.c.began_at).label("seconds"),
    attempt.c.outcome,
    _COMPLETE.label("complete"),
    which=NO_UNDO,
)
_RECENT = select(_OF.c.no, _LAST).select_from(_OF.table).join(_LAST, true())


def recent(conn: Connection, numbers: Collection[int]) -> dict[int, list[Past]]:
    """The last attempts that ended and executed the pipeline's tasks, by pipeline number, the latest first."""
    found: dict[int, list[Past]] = {no: [] for no in numbers}
    for row in conn.execute(_RECENT, _OF.values(no=sorted(numbers))):
        if row.seconds is not None:
            past = Past(
                AttemptMode(row.mode),
                row.code.get("sha256"),
                row.runs,
                float(row.seconds),
                AttemptOutcome(row.outcome),
                row.complete,
            )
            found[row.no].append(past)
    return found
