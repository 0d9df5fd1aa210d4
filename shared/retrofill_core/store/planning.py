"""Decides about requests, for the planner and for dry runs alike, and inserts plans."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import BigInteger, Connection, Integer, Text, func, insert, literal, select, text
from sqlalchemy.dialects.postgresql import TSTZMULTIRANGE, Range
from sqlalchemy.dialects.postgresql.ranges import MultiRange

from retrofill.outputs.cannot_stage import local_path
from retrofill.protocol.script_texts import AnySecret, Values, fill
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.domain.backfill import ACTIVE, BackfillState, Publish
from retrofill_core.domain.pipeline import PipelineDefinition, TaskDefinition
from retrofill_core.domain.planning import (
    Active,
    History,
    Intervals,
    Plan,
    Reason,
    Rejection,
    not_reviewable,
    past,
    plan,
    schedule_changed,
    with_secret,
)
from retrofill_core.domain.run import RunState
from retrofill_core.settings import Settings
from retrofill_core.store import conditions
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.sql import CHUNK, Arrays, database_now
from retrofill_core.store.tables import Moment, backfill, backfill_interval, run

# To find two intervals that stage one directory takes about 20 microseconds an interval.
MOST_COMPARED = 10_000


def unfillable(pipeline: PipelineDefinition, conf: Mapping[str, Any], found: Intervals | Rejection) -> Rejection | None:
    """The rejection of a request whose ``conf`` has no value for a field of a script, or makes a path that cannot be staged."""
    if isinstance(found, Rejection):
        return None
    for task in pipeline.tasks:
        try:
            _staged_by(pipeline, task, conf, found.starts[0], found.ends[0])
        except ValueError as e:
            return Rejection(Reason.BAD_ARGUMENTS, f"task {task.name!r}: {e}")
    return None


def shared_places(pipeline: PipelineDefinition, conf: Mapping[str, Any], found: Intervals) -> Iterator[str]:
    """A line for each script of which two intervals stage one directory."""
    zone = ZoneInfo(pipeline.timezone)
    for task in pipeline.tasks:
        if not task.stages_directories:
            continue
        owners: dict[Path, datetime] = {}
        for start, end in zip(found.starts[:MOST_COMPARED], found.ends, strict=False):
            staged = _staged_by(pipeline, task, conf, start, end)
            taken = next((each for each in staged if owners.setdefault(each, start) != start), None)
            if taken is not None:
                first, other = owners[taken].astimezone(zone), start.astimezone(zone)
                yield (
                    f"task {task.name!r}: the intervals {first.isoformat()} and {other.isoformat()} stage one directory, "
                    f"{taken}, so only the first of them will be published: name it by the whole interval"
                )
                break


def _staged_by(
    pipeline: PipelineDefinition, task: TaskDefinition, conf: Mapping[str, Any], start: datetime, end: datetime
) -> Sequence[Path]:
    """The directories that a script or a file of SQL stages for an interval. Raises ``BadArgument`` or ``CannotStage``."""
    staged: list[Path] = []

    def stage(path: str) -> str:
        staged.append(local_path(path))
        return path

    def partitions(path: str, names: Sequence[str]) -> str:
        staged.extend(local_path(f"{local_path(path)}/{name}") for name in names)
        return path

    zone = ZoneInfo(pipeline.timezone)
    run = {"id": 1, "attempt": 1, "backfill_id": "b"}
    tables = [table.name for table in task.tables]
    ends = start.astimezone(zone), end.astimezone(zone)
    # Which secrets there are, only the hosts of its pool know.
    fill(task.texts, Values(*ends, run, conf, stage, str, partitions, AnySecret(), tables))
    return list(dict.fromkeys(staged))


# First key of our advisory locks; the second is the pipeline's number.
PLANNING_LOCK = 0x52464C


def lock_pipelines(conn: Connection, numbers: Sequence[int]) -> None:
    """Take the planning locks of pipelines until the transaction ends, in numerical order."""
    for no in sorted(set(numbers)):
        conn.execute(text("SELECT pg_advisory_xact_lock(:space, :no)"), {"space": PLANNING_LOCK, "no": no})


def decide(
    conn: Connection,
    settings: Settings,
    stored: StoredPipeline,
    body: BackfillRequested,
    found: Intervals | Rejection,
) -> tuple[Plan | Rejection, History]:
    """The plan of a request whose intervals are ``found``, or why there is none; and what it was decided from."""
    now, definition = database_now(conn), stored.definition
    refused = (
        _too_large(body, settings.max_conf_bytes)
        or with_secret(body.conf)
        or (not_reviewable(definition) if body.publish == Publish.REVIEW else None)
        or past(body.finish_by, body.budget_until, now)
        or schedule_changed(definition, body.expected, found, body.reprocess_behavior)
        or unfillable(definition, body.conf, found)
    )
    if refused is not None:
        return refused, History()
    if isinstance(found, Rejection):
        return found, History()
    known = history(conn, stored.no, found)
    return plan(definition, found, known, body.reprocess_behavior, now), known


def _too_large(body: BackfillRequested, most: int) -> Rejection | None:
    size = len(json.dumps(body.conf))
    if size <= most:
        return None
    return Rejection(
        Reason.CONF_TOO_LARGE,
        f"conf has {size:,} bytes as JSON, more than {most:,}: store the data where tasks can read it",
    )


_COVERED = func.coalesce(
    backfill.c.covers_parts, func.tstzmultirange(backfill.c.covers, type_=TSTZMULTIRANGE()), type_=TSTZMULTIRANGE()
)
_PARTS = Arrays("part", first=Moment, last=Moment)


def overlapping(conn: Connection, pipeline_no: int, intervals: Intervals) -> list[Active]:
    """Active backfills with one of ``intervals``, in the order of their requests."""
    found = conn.execute(
        select(backfill.c.id, backfill.c.state, backfill.c.covers)
        .where(
            backfill.c.pipeline_no == pipeline_no,
            backfill.c.state.in_(ACTIVE),
            _COVERED.op("&&")(literal(_multirange(intervals), TSTZMULTIRANGE())),
        )
        .order_by(backfill.c.requested_at)
    )
    return [Active(row.id, row.state, row.covers.lower, row.covers.upper) for row in found]


def history(conn: Connection, pipeline_no: int, intervals: Intervals) -> History:
    """Active backfills with one of ``intervals``, and the runs that decide on reprocessing."""
    near = conditions.overlaps(run, pipeline_no, _PARTS.c.first, _PARTS.c.last)
    parts = _PARTS.values(first=(first for first, _ in intervals.parts), last=(last for _, last in intervals.parts))
    statement = conditions.finished().select_from(_PARTS.table.join(run, near))
    return History(overlapping(conn, pipeline_no, intervals), conditions.read_finished(conn, statement, parts))


def _multirange(intervals: Intervals) -> MultiRange[datetime]:
    return MultiRange(Range(first, last) for first, last in intervals.parts)


def insert_backfill(conn: Connection, values: dict[str, Any], made: Plan) -> None:
    """Insert a backfill; ``values`` are the columns not in the plan."""
    row = {
        **values,
        "state": BackfillState.RUNNING,
        "covers": Range(made.intervals.start, made.intervals.end),
        "covers_parts": _multirange(made.intervals) if len(made.intervals.parts) > 1 else None,
        "runs": made.runs,
    }
    conn.execute(insert(backfill).values(row))


def insert_runs(
    conn: Connection,
    backfill_id: str,
    pipeline_no: int,
    made: Plan,
    now: datetime,
    *,
    backwards: bool,
    undoes: str | None = None,
) -> None:
    """Insert all runs and intervals of a plan, ``CHUNK`` intervals per statement.

    ``undoes``: the backfill whose runs they undo.

    Neither this process nor the server holds more than a chunk at once, and the transaction is
    never idle for long.
    """
    positions = _positions(made, backwards=backwards)
    for first in range(0, len(made.skipped), CHUNK):
        _insert_chunk(conn, backfill_id, pipeline_no, made, now, slice(first, first + CHUNK), positions, undoes)


_UNDONE = run.alias("undone")
_INTERVALS = Arrays("given", interval_start=Moment, interval_end=Moment, position=Integer, reason=Text)


def _insert_chunk(
    conn: Connection,
    backfill_id: str,
    pipeline_no: int,
    made: Plan,
    now: datetime,
    chunk: slice,
    positions: Iterator[int],
    undoes: str | None,
) -> None:
    given = _INTERVALS
    wanted = select(
        literal(backfill_id),
        literal(pipeline_no, BigInteger),
        given.c.interval_start,
        given.c.interval_end,
        given.c.position,
        literal(str(RunState.QUEUED)),
        literal(now, Moment),
    ).where(given.c.position.is_not(None))
    names = ["backfill_id", "pipeline_no", "interval_start", "interval_end", "position", "state", "queued_at"]
    if undoes is not None:
        undone = (_UNDONE.c.backfill_id == undoes) & (_UNDONE.c.interval_start == given.c.interval_start)
        # By the index of succeeded runs of an interval.
        undone &= (_UNDONE.c.pipeline_no == pipeline_no) & (_UNDONE.c.state == str(RunState.SUCCEEDED))
        wanted = wanted.add_columns(_UNDONE.c.id, _UNDONE.c.outputs)
        wanted = wanted.select_from(given.table.join(_UNDONE, undone & _UNDONE.c.superseded_by.is_(None)))
        names += ["restores", "outputs"]
    inserted = (
        insert(run)
        .from_select(names, wanted.order_by(given.c.position))
        .returning(run.c.id, run.c.interval_start)
        .cte("inserted")
    )
    intervals = select(
        literal(backfill_id), given.c.interval_start, given.c.interval_end, inserted.c.id, given.c.reason
    ).select_from(given.table.outerjoin(inserted, inserted.c.interval_start == given.c.interval_start))
    names = ["backfill_id", "interval_start", "interval_end", "run_id", "reason"]
    conn.execute(insert(backfill_interval).from_select(names, intervals), _values(made, chunk, positions))


def _values(made: Plan, chunk: slice, positions: Iterator[int]) -> dict[str, list[Any]]:
    """The intervals of a chunk; each has a start position or the reason it is skipped."""
    reasons = made.skipped[chunk]
    return _INTERVALS.values(
        interval_start=made.intervals.starts[chunk],
        interval_end=made.intervals.ends[chunk],
        position=(next(positions) if reason is None else None for reason in reasons),
        reason=reasons,
    )


def _positions(made: Plan, *, backwards: bool) -> Iterator[int]:
    """Start positions of the runs, in interval order."""
    return iter(range(made.runs - 1, -1, -1) if backwards else range(made.runs))
