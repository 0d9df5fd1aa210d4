"""Deadlines: the alerts of pipelines, and one moment by which one run, one task of it, or one backfill must be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import AwareDatetime, Field, JsonValue, model_validator

from retrofill.sdk.names import Reference as Reference
from retrofill.states import machine
from retrofill_core.domain.callback import CallbackTarget, FunctionCall
from retrofill_core.domain.data import Data, Name
from retrofill_core.domain.templates import BACKFILL_FIELDS, FIELDS, check_templates

# Name of the alert that a request adds.
FINISH_BY = "finish_by"
MAX_SECONDS = 3_155_760_000


R = Reference
# Armed at planning; those below when a run or task first starts.
AT_PLANNING = (R.RUN_QUEUED_AT, R.LOGICAL_DATE, R.FIXED_DATETIME)
AT_RUN_START = (R.RUN_STARTED_AT, R.AVERAGE_RUNTIME)
AT_TASK_START = (R.TASK_STARTED_AT,)
# For the whole backfill, armed at planning.
OF_BACKFILL = (R.BACKFILL_REQUESTED_AT,)
# Required arguments by reference.
ARGUMENTS: dict[Reference, tuple[str, ...]] = {
    R.FIXED_DATETIME: ("at",),
    R.AVERAGE_RUNTIME: ("last_n", "min_runs"),
    R.TASK_STARTED_AT: ("task",),
}


def check_handled(handled: Iterable[Reference], wanted: Iterable[Reference] = R) -> None:
    """Fail at import if a reference has no code that arms it. Raises ``NotImplementedError``."""
    if left := set(wanted) ^ set(handled):
        raise NotImplementedError(f"no code arms deadlines that count from {', '.join(sorted(left))}")


check_handled([*AT_PLANNING, *AT_RUN_START, *AT_TASK_START, *OF_BACKFILL])


class DeadlineAlert(Data):  # type: ignore[no-redef]  # the plugin takes the field kwargs for **kwargs
    """Each run, task or backfill must be done ``interval_seconds`` after its reference moment."""

    name: Name = Field(description="Unique in the pipeline")
    reference: Reference = Field(description="The moment the deadline counts from")
    interval_seconds: float = Field(
        ge=-MAX_SECONDS,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Added to the reference moment; negative for an early warning",
    )
    at: AwareDatetime | None = Field(None, description="FIXED_DATETIME: the moment")
    last_n: int | None = Field(None, ge=1, le=1000, description="AVERAGE_RUNTIME: number of last successes to average")
    min_runs: int | None = Field(
        None, ge=1, le=1000, description="AVERAGE_RUNTIME: with fewer successes the deadline is void"
    )
    task: str | None = Field(None, description="TASK_STARTED_AT: the task that must be done")
    callback: CallbackTarget | None = Field(None, description="What to call; a bare name means a function")
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Passed to the callback; texts may refer to the deadline, as in {run.id}"
    )
    at_most_once: bool = Field(False, description="Do not call again if the result of a call is unknown")
    fire_if_past: bool = Field(False, description="Fire even if the moment is past when the deadline is armed")
    fire_on_failure: bool = Field(False, description="Fire even if it failed or was cancelled before the moment")
    digest_seconds: float | None = Field(
        None, ge=1, le=86_400, description="Collect misses for this long into one event"
    )

    @model_validator(mode="after")
    def _consistent(self) -> DeadlineAlert:
        wanted = ARGUMENTS.get(self.reference, ())
        for name in ("at", "last_n", "min_runs", "task"):
            if (getattr(self, name) is None) == (name in wanted):
                needs = f"needs {' and '.join(wanted)}" if name in wanted else f"takes no {name!r}"
                raise ValueError(f"deadline {self.name!r}: the reference {self.reference} {needs}")
        if (self.min_runs or 0) > (self.last_n or 0):
            raise ValueError(f"deadline {self.name!r}: min_runs exceeds last_n, so it would never be armed")
        if self.of_backfill and self.digest_seconds is not None:
            raise ValueError(
                f"deadline {self.name!r} is for the whole backfill: remove the digest, which has nothing to collect"
            )
        try:
            check_templates(self.kwargs, BACKFILL_FIELDS if self.of_backfill else FIELDS)
        except ValueError as e:
            raise ValueError(f"deadline {self.name!r}: {e}") from e
        return self

    @property
    def of_backfill(self) -> bool:
        """Whether the deadline is for the whole backfill."""
        return self.reference == R.BACKFILL_REQUESTED_AT or self.name == FINISH_BY


def finish_by(at: datetime, callback: str | None = None) -> DeadlineAlert:
    """The alert a request adds for its own backfill: done by ``at``."""
    target = None if callback is None else FunctionCall(name=callback)
    return DeadlineAlert(name=FINISH_BY, reference=R.FIXED_DATETIME, interval_seconds=0, at=at, callback=target)


class DeadlineState(StrEnum):
    """States of a deadline."""

    ARMED = "armed"
    MISSED = "missed"
    MET = "met"
    VOID = "void"


S = DeadlineState
MACHINE = machine("deadline", {S.ARMED: (S.MISSED, S.MET, S.VOID), S.MISSED: (), S.MET: (), S.VOID: ()})


class Scope(StrEnum):
    """What must be done by the deadline."""

    RUN = "run"
    TASK = "task"
    BACKFILL = "backfill"


class End(StrEnum):
    """How the run, task or backfill of a deadline ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Arming:
    """The initial state of a deadline: armed, or void with a reason."""

    due_at: datetime
    state: DeadlineState
    reason: str | None = None


PAST = "already past when it was armed"
RETRIED = "the run failed before the moment and was retried"


@dataclass(frozen=True)
class Due:
    """When an alert is due for a plan and its runs: at ``fixed``, or ``after`` each logical date."""

    now: datetime
    fixed: datetime | None = None
    after: timedelta = timedelta()

    def at(self, logical_date: datetime) -> datetime:
        """When the deadline of one run is due."""
        return _after(logical_date, self.after) if self.fixed is None else self.fixed


def due_at_planning(alert: DeadlineAlert, now: datetime) -> Due:
    """When an alert with a reference in ``AT_PLANNING`` or ``OF_BACKFILL`` is due, for what is planned at ``now``."""
    return _DUE[alert.reference](alert, now, timedelta(seconds=alert.interval_seconds))


def _fixed(alert: DeadlineAlert, now: datetime, after: timedelta) -> Due:
    assert alert.at is not None  # validated
    return Due(now, _after(alert.at, after))


_DUE: dict[Reference, Callable[[DeadlineAlert, datetime, timedelta], Due]] = {
    Reference.RUN_QUEUED_AT: lambda _, now, after: Due(now, _after(now, after)),
    Reference.LOGICAL_DATE: lambda _, now, after: Due(now, after=after),
    Reference.FIXED_DATETIME: _fixed,
    Reference.BACKFILL_REQUESTED_AT: lambda _, now, after: Due(now, _after(now, after)),
}
check_handled(_DUE, (*AT_PLANNING, *OF_BACKFILL))


def arm_planned(alert: DeadlineAlert, logical_date: datetime, now: datetime) -> Arming:
    """Arm an alert of ``due_at_planning`` for a backfill, or a run of it, that is planned at ``now``."""
    return _arm(alert, due_at_planning(alert, now).at(logical_date), now)


def arm(alert: DeadlineAlert, reference_at: datetime, now: datetime) -> Arming:
    """Arm ``alert`` for a reference moment.

    If it is already due, it is void, unless ``fire_if_past`` is set.
    """
    return _arm(alert, _after(reference_at, timedelta(seconds=alert.interval_seconds)), now)


def _arm(alert: DeadlineAlert, due_at: datetime, now: datetime) -> Arming:
    if due_at <= now and not alert.fire_if_past:
        return Arming(due_at, S.VOID, PAST)
    return Arming(due_at, S.ARMED)


def arm_by_average(alert: DeadlineAlert, runtimes: Iterable[timedelta], now: datetime, runs: int = 1) -> Arming:
    """Arm an AVERAGE_RUNTIME alert at a run's first start, from ``runtimes`` of the last successes.

    ``runs``: how many are executed in one go with it, none of which is done before the others. With
    fewer than ``min_runs`` it is void: the average would be a guess.
    """
    known = list(runtimes)
    if len(known) < (alert.min_runs or 1):
        reason = f"the average needs {alert.min_runs} successful runs, but there are {len(known)}"
        return Arming(now, S.VOID, reason)
    return arm(alert, now + runs * sum(known, timedelta()) / len(known), now)


def alerts_counting_from(alerts: Iterable[DeadlineAlert], *references: Reference) -> list[DeadlineAlert]:
    """The alerts that count from one of ``references``."""
    return [alert for alert in alerts if alert.reference in references]


@dataclass(frozen=True)
class Watched:
    """The facts to judge a deadline; ``ended`` is ``None`` until its subject has ended.

    ``superseded``: its run failed and was retried, as another run with deadlines of its own.
    """

    due_at: datetime
    fire_on_failure: bool
    scope: Scope = Scope.RUN
    ended: End | None = None
    ended_at: datetime | None = None
    superseded: bool = False


@dataclass(frozen=True)
class Verdict:
    """The new state of a deadline, with a reason if ``void``.

    ``recovered``: missed, but succeeded since.
    """

    state: DeadlineState
    reason: str | None = None
    recovered: bool = False


def judge(watched: Watched, now: datetime) -> Verdict | None:
    """Decide an armed deadline at ``now``; ``None`` if it stays armed.

    ``now`` is the database's clock, read under the lock.

    Met: succeeded by the moment. Void: failed, cancelled or skipped by then; with
    ``fire_on_failure``, a failure or cancel counts as missed at the moment, unless the run was
    retried. Missed: not done by the moment.
    """
    ended, due_at = watched.ended, watched.due_at
    if ended is not None and watched.ended_at is not None and watched.ended_at <= due_at:
        if ended == End.SUCCEEDED:
            return Verdict(S.MET)
        if watched.superseded:
            return Verdict(S.VOID, RETRIED)
        if ended == End.SKIPPED or not watched.fire_on_failure:
            how = "failed" if ended == End.FAILED else f"was {ended}"
            return Verdict(S.VOID, f"the {watched.scope} {how} before the moment")
    if now >= due_at:
        return Verdict(S.MISSED, recovered=ended == End.SUCCEEDED)
    return None


# In no time zone are these outside the calendar, which Python and its Postgres driver cannot
# handle.
FIRST = datetime(2, 1, 1, tzinfo=UTC)
LAST = datetime(9998, 12, 31, tzinfo=UTC)


def _after(moment: datetime, interval: timedelta) -> datetime:
    """``moment`` plus ``interval`` in UTC, clamped to ``FIRST`` and ``LAST``."""
    try:
        return min(max(moment + interval, FIRST), LAST).astimezone(UTC)
    except OverflowError:
        return LAST if (interval.total_seconds() or moment.year - FIRST.year) > 0 else FIRST


# Hints may be lost, so the index is probed at least this often.
POLL_SECONDS = 60.0
# Another transaction holds the lock of a due row.
LOCKED_SECONDS = 0.05
# Timers may fire early. The database's clock decides, so waking slightly late only saves a check.
MARGIN_SECONDS = 0.001


def seconds_until(due_at: datetime | None, now: datetime) -> float:
    """Seconds until the next check if the earliest row is due at ``due_at`` (``None``: no row)."""
    if due_at is None:
        return POLL_SECONDS
    left = (due_at - now).total_seconds()
    return LOCKED_SECONDS if left <= 0 else min(left + MARGIN_SECONDS, POLL_SECONDS)
