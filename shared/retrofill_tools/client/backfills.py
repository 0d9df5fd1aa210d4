"""Backfills: a list of them, and all that is known about one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import TIMESTAMP, ColumnElement, Connection, Text, case, exists, func, literal, literal_column, select
from sqlalchemy.dialects.postgresql import TSTZMULTIRANGE

from retrofill.errors import NotThere, stored_line
from retrofill.states import AttemptState
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.estimate import Estimate, Size, next_size
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import MACHINE, RunState
from retrofill_core.store import backfills, rows
from retrofill_core.store.backfills import run_counts
from retrofill_core.store.conditions import has_failed
from retrofill_core.store.pipelines import codes, limit
from retrofill_core.store.progress import costs, counts, estimates, last_attempts
from retrofill_core.store.rows import columns_of
from retrofill_core.store.sql import database_now, in_state
from retrofill_core.store.tables import attempt, backfill, backfill_interval, backfill_request, host, run, seat
from retrofill_core.store.tables.backfills import COVERED
from retrofill_tools.client.attempts import AttemptNotDone, attempts_not_done
from retrofill_tools.client.deadlines import Undelivered, undelivered
from retrofill_tools.client.documents import names
from retrofill_tools.client.hosts import find_hosts, unserved, waits_for, why_spark_fails
from retrofill_tools.client.intervals import Calendar, calendar
from retrofill_tools.client.pipelines import StoredDefinition
from retrofill_tools.client.runs import FailedRun, Failure, Suspect, failed_runs, failures_of, suspects

# At most this many attempts that did not come to their end, and suspects.
ATTEMPTS = SUSPECTS = 10
NOBODY = "no run-starter is alive: start one (retrofill up, retrofill service run-starter)"


@dataclass(frozen=True, slots=True)
class Backfill(rows.Backfill):
    """A backfill as it is stored."""

    reprocess_behavior: str
    run_backwards: bool
    triggered_by: str | None
    ended_at: datetime | None
    definition: StoredDefinition

    @property
    def range_start(self) -> datetime:
        return rows.present(self.covers.lower)

    @property
    def range_end(self) -> datetime:
        return rows.present(self.covers.upper)


@dataclass(frozen=True)
class Search:
    """Which backfills are listed; ``None``: any.

    ``text``: a part of the id or of the pipeline's name; ``requester``: a part of ``triggered_by``, both in any case.
    ``since`` and ``until``: when it was requested, inclusive and exclusive. ``day``: it has an interval with a part of
    that day, in its pipeline's time zone. ``active_since``: it had not ended by then. ``failed``: it failed, or has
    failed runs.
    """

    text: str | None = None
    requester: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    day: date | None = None
    active_since: datetime | None = None
    failed: bool = False

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """On ``backfill``."""
        b = backfill.c
        if self.text is not None:
            yield b.id.icontains(self.text, autoescape=True) | b.pipeline.icontains(self.text, autoescape=True)
        if self.requester is not None:
            yield b.triggered_by.icontains(self.requester, autoescape=True)
        if self.since is not None:
            yield b.requested_at >= self.since
        if self.until is not None:
            yield b.requested_at < self.until
        if self.day is not None:
            midnights = (datetime.combine(self.day + timedelta(days=n), time.min) for n in range(2))
            zone = b.definition.op("->>", return_type=Text())("timezone")
            day = func.tstzrange(*(func.timezone(zone, literal(each, TIMESTAMP())) for each in midnights))
            yield literal_column(COVERED, TSTZMULTIRANGE()).bool_op("&&")(day)
        if self.active_since is not None:
            yield b.ended_at.is_(None) | (b.ended_at >= self.active_since)
        if self.failed:
            yield (b.state == BackfillState.FAILED) | exists().where(run.c.backfill_id == b.id, has_failed(run))


ANY = Search()


@dataclass(frozen=True)
class TimeLeft:
    """When it probably ends, in seconds from now."""

    seconds: float
    low: float
    high: float
    runs_per_second: float


@dataclass(frozen=True)
class BackfillSummary:
    """A backfill with the number of its runs ``by_state``, and when it will probably end if it runs."""

    id: str
    pipeline: str
    state: str
    runs: int
    ended_runs: int
    requested_at: datetime
    ended_at: datetime | None
    triggered_by: str | None
    max_active_runs: int
    range_start: datetime
    range_end: datetime
    timezone: str
    by_state: Mapping[str, int]
    estimate: TimeLeft | None


@dataclass(frozen=True)
class ActiveBackfill:
    """An active backfill with the number of its runs ``by_state``."""

    id: str
    pipeline: str
    state: str
    runs: int
    requested_at: datetime
    by_state: Mapping[str, int]


@dataclass(frozen=True)
class FullBackfill:
    """All that is known about a backfill.

    ``attempts``: the last ones that did not come to their end. ``suspects``: runs that are retried
    alone because a driver was lost with them. ``review``: the number of the present review, from 0, or of the next;
    ``changed_intervals``: those that it was approved for, and that somebody has changed since. ``skipped``: the number
    of intervals without a run, by reason. ``runs_by_code``: the number of started runs by code archive of the last
    attempt that began them; ``""`` for code that was not shipped. ``failures``: all failed runs, by their errors.
    ``applied_code_sha256``: of the pipeline's code by now. ``undelivered``: callbacks that did not arrive.
    """

    id: str
    pipeline: str
    state: str
    cancel_cause: str | None
    runs: int
    held_back: str | None
    by_state: Mapping[str, int]
    purged: bool
    skipped: Mapping[str, int]
    timezone: str
    range_start: datetime
    range_end: datetime
    calendar: Calendar
    undoes: str | None
    max_active_runs: int
    pipeline_max_active_runs: int
    reprocess_behavior: str
    run_backwards: bool
    on_run_failure: str
    conf: dict[str, Any]
    triggered_by: str | None
    batch_size: int | str
    batch_mode: str
    batch_now: Size | None
    code_sha256: str | None
    latest_code: bool
    applied_code_sha256: str | None
    runs_by_code: Mapping[str, int]
    requested_at: datetime
    first_started_at: datetime | None
    last_finished_at: datetime | None
    runs_started_again: int
    ended_at: datetime | None
    runs_per_second: float | None
    estimate: TimeLeft | None
    cost: Mapping[str, Any] | None
    budget: Mapping[str, Any] | None
    review: int | None
    changed_intervals: list[datetime]
    failed_runs: list[FailedRun]
    failures: list[Failure]
    suspects: list[Suspect]
    attempts: list[AttemptNotDone]
    undelivered: list[Undelivered]


def find_backfill(conn: Connection, id: str) -> Backfill:
    """Raises ``NotThere``, which says why there is none."""
    row = conn.execute(select(*columns_of(Backfill, backfill)).where(backfill.c.id == id)).first()
    if row is None:
        answer = conn.execute(select(backfill_request.c.answer).where(backfill_request.c.id == id)).scalar()
        raise NotThere(missing(answer, id))
    return _stored(row)


def _stored(row: Sequence[Any]) -> Backfill:
    """A row of its columns, of which the definition is the last."""
    return Backfill(*(*row[:-1], StoredDefinition(row[-1])))


def missing(answer: Mapping[str, object] | None, id: str) -> str:
    """Why the backfill does not exist: it was rejected, was purged, or was never requested."""
    if answer is not None:
        rejected = answer.get("message")
        return f"backfill {id} was rejected: {rejected}" if rejected else f"backfill {id} ended long ago and was purged"
    return f"there is no backfill {id!r}: retrofill backfill list"


def ids_like(conn: Connection, prefix: str, limit: int) -> list[str]:
    """Ids of backfills with this prefix, active ones first, then the newest."""
    found = select(backfill.c.id).where(backfill.c.id.startswith(prefix, autoescape=True)).limit(limit)
    newest = (backfill.c.ended_at.is_not(None), backfill.c.requested_at.desc(), backfill.c.id)
    return list(conn.execute(found.order_by(*newest)).scalars())


def find_backfills(
    conn: Connection,
    of_pipeline: str | None,
    states: Sequence[str],
    limit: int,
    *,
    counted: bool = True,
    search: Search = ANY,
) -> list[BackfillSummary]:
    """Backfills, newest first. Unless ``counted``, without the numbers of their runs by state and estimates."""
    newest = select(backfill).order_by(backfill.c.requested_at.desc(), backfill.c.id).limit(limit)
    newest = newest.where(*search.conditions())
    if of_pipeline is not None:
        newest = newest.where(backfill.c.pipeline == of_pipeline)
    if states:
        newest = newest.where(backfill.c.state.in_(states))
    chosen = newest.subquery()
    finished = (
        select(func.count())
        .where(run.c.backfill_id == chosen.c.id, run.c.finished_at.is_not(None), run.c.superseded_by.is_(None))
        .scalar_subquery()
    )
    # In an ended backfill all runs ended, including those purged since.
    ended = case((chosen.c.ended_at.is_not(None), chosen.c.runs), else_=finished)
    newest_first = (chosen.c.requested_at.desc(), chosen.c.id)
    found = [
        (_stored(row[1:]), row[0])
        for row in conn.execute(select(ended, *columns_of(Backfill, chosen)).order_by(*newest_first))
    ]
    by_state, expected = _counted(conn, [of for of, _ in found]) if counted else ({}, {})
    return [
        BackfillSummary(
            id=of.id,
            pipeline=of.pipeline,
            state=of.state,
            runs=of.runs,
            ended_runs=ended_runs,
            requested_at=of.requested_at,
            ended_at=of.ended_at,
            triggered_by=of.triggered_by,
            max_active_runs=of.max_active_runs,
            range_start=of.range_start,
            range_end=of.range_end,
            timezone=of.definition.timezone,
            by_state=by_state.get(of.id, {RunState.SUCCEEDED: of.runs}),
            estimate=time_left(expected.get(of.id)),
        )
        for of, ended_runs in found
    ]


def _counted(conn: Connection, backfills: Sequence[Backfill]) -> tuple[dict[str, dict[str, int]], dict[str, Estimate]]:
    # Those that succeeded may be many, with many runs: they need not be counted.
    by_state = counts(conn, [each.id for each in backfills if each.state != BackfillState.SUCCEEDED])
    return by_state, estimates(conn, backfills, by_state, database_now(conn))


def time_left(found: Estimate | None) -> TimeLeft | None:
    return None if found is None else TimeLeft(*(round(getattr(found, name), 3) for name in names(TimeLeft)))


def count_active(conn: Connection) -> tuple[int, int]:
    """How many backfills are active, and how many attempts are live."""
    backfills = select(func.count()).select_from(backfill).where(backfill.c.ended_at.is_(None))
    attempts = select(func.count()).select_from(attempt).where(attempt.c.slot.is_not(None))
    found = conn.execute(select(backfills.scalar_subquery(), attempts.scalar_subquery())).one()
    return found[0], found[1]


def active_backfills(conn: Connection, limit: int) -> list[ActiveBackfill]:
    """Active backfills, newest first."""
    newest = (
        select(backfill.c.id, backfill.c.pipeline, backfill.c.state, backfill.c.runs, backfill.c.requested_at)
        .where(backfill.c.ended_at.is_(None))
        .order_by(backfill.c.requested_at.desc(), backfill.c.id)
        .limit(limit)
    )
    rows = conn.execute(newest).all()
    by_state = counts(conn, [row.id for row in rows])
    return [ActiveBackfill(*row, by_state[row.id]) for row in rows]


def expected_end(conn: Connection, of: Backfill, by_state: Mapping[str, int], now: datetime) -> Estimate | None:
    """When it probably ends; ``None``: nothing is known, or it starts no runs."""
    return estimates(conn, [of], {of.id: by_state}, now).get(of.id)


def describe_backfill(conn: Connection, of: Backfill, failures: int) -> FullBackfill:
    """With at most ``failures`` of its failed runs."""
    by_state = run_counts(conn, of.id)
    first_started_at, last_finished_at, runs_started_again = _run_times(conn, of.id)
    until, budget = of.ended_at or database_now(conn), backfills.budget_of(of)
    changed = backfills.reviewed_again(conn, of.id) if of.state == BackfillState.IN_REVIEW else []
    return FullBackfill(
        id=of.id,
        pipeline=of.pipeline,
        state=of.state,
        cancel_cause=of.cancel_cause,
        runs=of.runs,
        held_back=unreadable(of)
        or _in_review(of, len(changed))
        or _used_up(conn, of)
        or without_drivers(conn, of, by_state)
        or _without_spark(conn, of)
        or waits_for(conn, of, of.definition, by_state)
        or _not_begun(conn, of.id)
        or _unpublished(conn, of, by_state),
        by_state=by_state,
        purged=is_purged(conn, of),
        skipped=_skipped(conn, of.id),
        timezone=of.definition.timezone,
        range_start=of.range_start,
        range_end=of.range_end,
        calendar=calendar(conn, of.id, of.definition.timezone, of.range_start, of.range_end),
        undoes=of.undoes,
        max_active_runs=of.max_active_runs,
        pipeline_max_active_runs=limit(conn, of.pipeline_no),
        reprocess_behavior=of.reprocess_behavior,
        run_backwards=of.run_backwards,
        on_run_failure=of.on_run_failure,
        conf=of.conf,
        triggered_by=of.triggered_by,
        batch_size=of.definition.batch_size(of.batch_size),
        batch_mode=of.definition.batch_mode,
        batch_now=_batch_now(conn, of),
        code_sha256=of.definition.data.get("code", {}).get("sha256"),
        latest_code=of.code_follows,
        applied_code_sha256=_applied_code(conn, of),
        runs_by_code=_runs_by_code(conn, of.id),
        requested_at=of.requested_at,
        first_started_at=first_started_at,
        last_finished_at=last_finished_at,
        runs_started_again=runs_started_again,
        ended_at=of.ended_at,
        runs_per_second=_rate(by_state, first_started_at, until),
        estimate=time_left(expected_end(conn, of, by_state, until)),
        cost=costs(conn, [of.id]).get(of.id),
        budget=None if budget is None else budget.model_dump(exclude_none=True),
        review=of.approved,
        changed_intervals=changed,
        failed_runs=failed_runs(conn, of.id, failures),
        failures=failures_of(conn, of.id),
        suspects=suspects(conn, of.id, SUSPECTS),
        attempts=attempts_not_done(conn, of.id, ATTEMPTS),
        undelivered=undelivered(conn, of.id),
    )


def is_purged(conn: Connection, of: Backfill) -> bool:
    """Purging deletes its intervals, which every backfill has."""
    mine = exists().where(backfill_interval.c.backfill_id == of.id)
    return of.ended_at is not None and not conn.execute(select(mine)).scalar_one()


def _run_times(conn: Connection, id: str) -> tuple[datetime | None, datetime | None, int]:
    """When its first run started and the last one finished, and how many were started again."""
    again = func.count().filter(run.c.attempt > 1)
    found = select(func.min(run.c.started_at), func.max(run.c.finished_at), again).where(run.c.backfill_id == id)
    first, last, number = conn.execute(found).one()
    return first, last, number


def _runs_by_code(conn: Connection, id: str) -> dict[str, int]:
    found = (
        select(run.c.code_sha256, func.count())
        .where(run.c.backfill_id == id, run.c.attempt > 0, run.c.superseded_by.is_(None))
        .group_by(run.c.code_sha256)
    )
    return {sha256 or "": number for sha256, number in conn.execute(found)}


def _applied_code(conn: Connection, of: Backfill) -> str | None:
    found = codes(conn, [of.pipeline_no]).get(of.pipeline_no)
    return None if found is None else found.sha256


def _skipped(conn: Connection, id: str) -> dict[str, int]:
    t = backfill_interval
    found = select(t.c.reason, func.count()).where(t.c.backfill_id == id, t.c.reason.is_not(None)).group_by(t.c.reason)
    return dict(conn.execute(found).all())


def _rate(by_state: Mapping[str, int], started: datetime | None, until: datetime) -> float | None:
    """Ended runs per second since the first one started."""
    ended = sum(count for state, count in by_state.items() if state in MACHINE.terminal)
    if started is None or ended == 0 or until <= started:
        return None
    return round(ended / (until - started).total_seconds(), 3)


def _batch_now(conn: Connection, of: Backfill) -> Size | None:
    """The chosen size of the next attempt. ``None``: none is chosen."""
    if of.ended_at is not None or of.definition.batch_size() != "auto" or unreadable(of) is not None:
        return None
    definition, no = PipelineDefinition.model_validate(of.definition.data), of.pipeline_no
    if of.code_follows:
        definition = definition.model_copy(update={"code": codes(conn, [no]).get(no, definition.code)})
    return next_size(definition.in_batches_of(of.batch_size), last_attempts(conn, [no])[no])


def unreadable(of: Backfill) -> str | None:
    """Why no runs of an active backfill start: this release cannot read its pipeline definition."""
    if of.ended_at is not None:
        return None
    try:
        PipelineDefinition.model_validate(of.definition.data)
    except ValidationError as e:
        fields = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in e.errors()[:3])
        return f"this release cannot read its pipeline definition; upgrade the run-starter or cancel it: {fields}"
    return None


def _in_review(of: Backfill, changed: int) -> str | None:
    if of.state != BackfillState.IN_REVIEW:
        return None
    commands = (f"retrofill backfill {verb} {of.id}" for verb in ("diff", "publish", "discard"))
    which = f", and somebody has changed what {changed:,} of its runs would replace" if changed else ""
    return f"its output waits for a review{which}: {', '.join(commands)}"


def _used_up(conn: Connection, of: Backfill) -> str | None:
    """Why a resume would be refused."""
    if of.state != BackfillState.PAUSED:
        return None
    why = backfills.budget_exceeded(conn, of.id, backfills.budget_of(of))
    return None if why is None else f"its budget is used up: {why}; retrofill backfill resume {of.id} --budget …"


def without_drivers(conn: Connection, of: Backfill, by_state: Mapping[str, int]) -> str | None:
    """Why queued runs do not start, or accepted ones are not published: its pool has no driver anywhere."""
    queued = of.state == BackfillState.RUNNING and by_state.get(RunState.QUEUED)
    if of.ended_at is not None or not (queued or _publishable(of, by_state)):
        return None
    alive = [each for each in find_hosts(conn) if each.alive]
    if not alive:
        return NOBODY
    there = [each for each in alive if each.pool == of.definition.pool]
    if not there:
        return unserved(of.definition.pool)
    if any(each.busy or (each.submits if of.definition.submits else each.warm) for each in there):
        return None
    why = "; ".join(f"{each.name}: {each.note or 'its drivers are starting'}" for each in there[:3])
    return f"no driver is ready: {why}"


def _without_spark(conn: Connection, of: Backfill) -> str | None:
    """Why its runs do not get on: their Spark server does not stay."""
    shares = of.ended_at is None and not of.definition.submits
    return why_spark_fails(conn, of.definition.pool) if shares else None


def _publishable(of: Backfill, by_state: Mapping[str, int]) -> bool:
    """Whether accepted runs need a publisher now."""
    return bool(by_state.get(RunState.STAGED)) and of.publishes_below > 0


def _not_begun(conn: Connection, id: str) -> str | None:
    """Why an attempt has a host but no driver yet, if the host says so."""
    found = (
        select(attempt.c.id, host.c.name, host.c.note)
        .join(seat, seat.c.attempt_id == attempt.c.id)
        .join(host, host.c.id == seat.c.host_id)
        .where(
            attempt.c.backfill_id == id,
            in_state(attempt, AttemptState.STARTING),
            host.c.note.is_not(None),
            host.c.lease_until > func.clock_timestamp(),
        )
        .order_by(attempt.c.id)
        .limit(1)
    )
    row = conn.execute(found).first()
    return None if row is None else f"attempt {row.id} waits at {row.name}: {row.note}"


def _unpublished(conn: Connection, of: Backfill, by_state: Mapping[str, int]) -> str | None:
    """Why accepted runs are not published yet, though publishers have tried."""
    if not _publishable(of, by_state):
        return None
    put_off = (
        select(run.c.id, run.c.publish_after, run.c.publish_error)
        .where(run.c.backfill_id == of.id, in_state(run, RunState.STAGED), run.c.publish_error.is_not(None))
        .order_by(run.c.position)
        .limit(1)
    )
    row = conn.execute(put_off).first()
    if row is None:
        return None
    when = "" if row.publish_after is None else f", again after {row.publish_after:%Y-%m-%d %H:%M:%S} UTC"
    return f"run {row.id} is accepted and not published yet{when}: {stored_line(row.publish_error)}"
