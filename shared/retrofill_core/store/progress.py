"""Progress of backfills: counts, what their attempts took and cost, and what was announced.

Each function sends one statement, or a few, however many backfills it is asked about.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Text,
    bindparam,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.selectable import LateralFromClause

from retrofill.states import AttemptMode, AttemptOutcome
from retrofill_core.domain.backfill import ACTIVE, BackfillState
from retrofill_core.domain.estimate import Estimate, Live, Measured, Past, Took, of_backfill
from retrofill_core.domain.run import MACHINE, RunState
from retrofill_core.domain.undo import UNDO_MODULE, is_undo
from retrofill_core.store.rows import Backfill
from retrofill_core.store.sql import Arrays, constant, in_state, one_of
from retrofill_core.store.tables import attempt, backfill, backfill_progress, run
from retrofill_core.store.transition import Values

# Attempts of a pipeline that are read. Enough to even out some that were unusual.
PAST_ATTEMPTS = 30
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


_LAST_PAST = last_ended(
    _OF,
    PAST_ATTEMPTS,
    attempt.c.mode,
    attempt.c.code,
    attempt.c.runs,
    # Without a begin it was not executed.
    func.extract("epoch", attempt.c.ended_at - attempt.c.began_at).label("seconds"),
    attempt.c.outcome,
    _COMPLETE.label("complete"),
    which=NO_UNDO,
)
_PAST = select(_OF.c.no, _LAST_PAST).select_from(_OF.table).join(_LAST_PAST, true())


def last_attempts(conn: Connection, numbers: Collection[int]) -> dict[int, list[Past]]:
    """The last attempts that ended and executed the pipeline's tasks, by pipeline number, the latest first."""
    found: dict[int, list[Past]] = {no: [] for no in numbers}
    for row in conn.execute(_PAST, _OF.values(no=sorted(numbers))):
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


# Attempts of a pipeline that are read: enough to tell how its backfills go now.
RECENT = 60
COSTS = ("core_seconds", "shuffle_bytes", "rows_read", "rows_written")


@dataclass(frozen=True, slots=True)
class Announced:
    """An active backfill. ``sequence`` and ``runs_by_state``: of the last event about its progress, if any."""

    id: str
    pipeline_no: int
    pipeline: str
    state: str
    runs: int
    resumed_at: datetime | None
    budget_failed_runs: int | None
    budget_core_hours: float | None
    budget_until: datetime | None
    sequence: int | None
    runs_by_state: dict[str, int] | None


_ANNOUNCED = (
    select(
        *(backfill.c[name] for name in ("id", "pipeline_no", "pipeline", "state", "runs", "resumed_at")),
        *(backfill.c[name] for name in ("budget_failed_runs", "budget_core_hours", "budget_until")),
        backfill_progress.c.sequence,
        backfill_progress.c.runs.label("runs_by_state"),
    )
    .select_from(backfill.outerjoin(backfill_progress, backfill_progress.c.backfill_id == backfill.c.id))
    .where(one_of(backfill.c.id, "ids"), in_state(backfill, *ACTIVE))
)
_COUNTS = (
    select(run.c.backfill_id, run.c.state, func.count().label("number"))
    .where(one_of(run.c.backfill_id, "ids"), run.c.superseded_by.is_(None))
    .group_by(run.c.backfill_id, run.c.state)
)


def announced(conn: Connection, ids: Collection[str]) -> list[Announced]:
    """The active ones among ``ids``."""
    return [Announced(*row) for row in conn.execute(_ANNOUNCED, {"ids": sorted(ids)})]


def counts(conn: Connection, ids: Collection[str]) -> dict[str, dict[str, int]]:
    """Number of runs by state, by backfill; states without runs are absent."""
    found: dict[str, dict[str, int]] = {id: {} for id in ids}
    for row in conn.execute(_COUNTS, {"ids": sorted(ids)}):
        found[row.backfill_id][row.state] = row.number
    return found


_TOOK = ("backfill_id", "mode", "runs", "outcome", "began_at", "ended_at", "code")
_LAST = last_ended(_OF, RECENT, *(attempt.c[name] for name in _TOOK), which=true())
_RECENT = select(_OF.c.no, _LAST).select_from(_OF.table).join(_LAST, true())
_LIVE = select(attempt.c.backfill_id, attempt.c.runs, attempt.c.began_at).where(
    one_of(attempt.c.backfill_id, "ids"), attempt.c.slot.is_not(None)
)


def measured(conn: Connection, backfills: Mapping[str, int], now: datetime) -> dict[str, Measured]:
    """What attempts took as of ``now``, for each of ``backfills`` (pipeline numbers by id)."""
    recent: dict[int, list[tuple[str, Took]]] = {}
    # Attempts that undo others say nothing about the pipeline's.
    undoing = set[str]()
    read, ranges = dict.fromkeys(backfills.values(), 0), set[int]()
    for row in conn.execute(_RECENT, _OF.values(no=sorted(set(backfills.values())))):
        read[row.no] += 1
        if row.mode == AttemptMode.RANGE:
            ranges.add(row.no)
        # Of others, the duration is not that of their runs.
        if row.began_at is not None and row.outcome == AttemptOutcome.DONE:
            took = Took(row.runs, _seconds(now, row.began_at), _seconds(now, row.ended_at))
            recent.setdefault(row.no, []).append((row.backfill_id, took))
            if is_undo(row.code):
                undoing.add(row.backfill_id)
    live: dict[str, list[Live]] = {}
    for row in conn.execute(_LIVE, {"ids": sorted(backfills)}) if backfills else ():
        age = 0.0 if row.began_at is None else _seconds(now, row.began_at)
        live.setdefault(row.backfill_id, []).append(Live(row.runs, age))
    return {
        id: Measured(
            own=[took for of, took in recent.get(no, ()) if of == id],
            pipeline=[took for of, took in recent.get(no, ()) if of not in undoing],
            live=live.get(id, []),
            all_of_it=read[no] < RECENT,
            ranges=no in ranges,
        )
        for id, no in backfills.items()
    }


def estimates(
    conn: Connection,
    backfills: Sequence[Backfill | Announced],
    by_state: Mapping[str, Mapping[str, int]],
    now: datetime,
) -> dict[str, Estimate]:
    """When these backfills probably end; absent: nothing is known, or it starts no runs."""
    running = [each for each in backfills if each.state == BackfillState.RUNNING]
    found = measured(conn, {each.id: each.pipeline_no for each in running}, now) if running else {}
    made = {each.id: _estimate(each, by_state[each.id], found[each.id], now) for each in running}
    return {id: each for id, each in made.items() if each is not None}


def _estimate(of: Backfill | Announced, by_state: Mapping[str, int], of_it: Measured, now: datetime) -> Estimate | None:
    if by_state.get(RunState.QUEUED) and not of_it.live:
        # It waits for others, whose end is not known here.
        return None
    ended = sum(number for state, number in by_state.items() if state in MACHINE.terminal)
    resumed = None if of.resumed_at is None else _seconds(now, of.resumed_at)
    return of_backfill(of_it, by_state.get(RunState.QUEUED, 0), ended, of.runs, resumed)


def _seconds(now: datetime, moment: datetime) -> float:
    return max(0.0, (now - moment).total_seconds())


@dataclass(frozen=True, slots=True)
class PastAttempts:
    """The last attempts of a pipeline, the latest first; ``None``: Spark did not tell the cost.

    ``ranges``: some processed a range.
    """

    took: list[Took]
    core_seconds_per_run: float | None
    ranges: bool


_WITH_COST = (
    select(*(attempt.c[name] for name in ("mode", "runs", "outcome", "began_at", "ended_at", "core_seconds")))
    .where(
        attempt.c.pipeline_no == bindparam("no"),
        attempt.c.ended_at.is_not(None),
        attempt.c.mode != constant(AttemptMode.PUBLISH),
        NO_UNDO,
    )
    .order_by(attempt.c.ended_at.desc())
    .limit(RECENT)
)


def history(conn: Connection, pipeline_no: int, now: datetime) -> PastAttempts:
    """What the last attempts of a pipeline that came to their end took and cost."""
    rows = [row for row in conn.execute(_WITH_COST, {"no": pipeline_no}) if row.outcome == AttemptOutcome.DONE]
    took = [Took(row.runs, _seconds(now, row.began_at), _seconds(now, row.ended_at)) for row in rows if row.began_at]
    priced = [row for row in rows if row.core_seconds is not None]
    per_run = sum(row.core_seconds for row in priced) / sum(row.runs for row in priced) if priced else None
    return PastAttempts(took, per_run, any(row.mode == AttemptMode.RANGE for row in rows))


_COST = (
    select(attempt.c.backfill_id, *(func.sum(attempt.c[name]).label(name) for name in COSTS))
    .where(one_of(attempt.c.backfill_id, "ids"), attempt.c.core_seconds.is_not(None))
    .group_by(attempt.c.backfill_id)
)


def costs(conn: Connection, ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """The resources that Spark reported for the attempts of each backfill that has any."""
    rows = conn.execute(_COST, {"ids": sorted(ids)})
    return {id: dict(zip(COSTS, map(_number, sums), strict=True)) for id, *sums in rows}


def _number(value: Any) -> float | int | None:
    """A sum of integers is a decimal."""
    return value if value is None or isinstance(value, float) else int(value)


_GIVEN = Arrays("given", backfill_id=Text, sequence=Integer, runs=backfill_progress.c.runs.type)
_INSERT = insert(backfill_progress).from_select(["backfill_id", "sequence", "runs"], select(*_GIVEN.c))
_UPDATE = (
    update(backfill_progress)
    .where(backfill_progress.c.backfill_id == _GIVEN.c.backfill_id)
    .values(sequence=_GIVEN.c.sequence, runs=_GIVEN.c.runs)
)


def put(conn: Connection, new: Sequence[Values]) -> None:
    """Record what is announced: ``backfill_id``, ``sequence`` and ``runs`` by state of each.

    Two statements if some are announced for the first time.
    """
    for statement, rows in (
        (_INSERT, [row for row in new if row["sequence"] == 1]),
        (_UPDATE, [row for row in new if row["sequence"] > 1]),
    ):
        if rows:
            conn.execute(statement, _GIVEN.values(**{name: [row[name] for row in rows] for name in rows[0]}))
