"""A deadline: one moment by which one run (or backfill) must be done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from retrofill.domain.machine import machine
from retrofill.domain.pipeline import DeadlineAlert, Reference
from retrofill.domain.run import RunState


class DeadlineState(StrEnum):
    """States of a deadline."""

    ARMED = "armed"
    MISSED = "missed"
    MET = "met"
    VOID = "void"


S = DeadlineState
MACHINE = machine("deadline", {S.ARMED: (S.MISSED, S.MET, S.VOID), S.MISSED: (), S.MET: (), S.VOID: ()})


@dataclass(frozen=True)
class Arming:
    """What a new deadline row starts as: armed, or void with the reason."""

    due_at: datetime
    state: DeadlineState
    reason: str | None = None


def arm(alert: DeadlineAlert, reference_at: datetime, now: datetime) -> Arming:
    """Arm ``alert`` for a reference moment; a moment already past is void unless the alert says ``fire_if_past``."""
    due_at = reference_at + timedelta(seconds=alert.interval_seconds)
    if due_at <= now and not alert.fire_if_past:
        return Arming(due_at, S.VOID, "already past when it was armed")
    return Arming(due_at, S.ARMED)


def alerts_counting_from(alerts: list[DeadlineAlert], *references: Reference) -> list[DeadlineAlert]:
    """The alerts whose moment counts from one of ``references``."""
    return [alert for alert in alerts if alert.reference in references]


@dataclass(frozen=True)
class Watched:
    """What the decision on one deadline needs to know of it and its run."""

    due_at: datetime
    fire_on_failure: bool
    run_state: RunState
    run_finished_at: datetime | None


@dataclass(frozen=True)
class Verdict:
    """What becomes of a deadline: its new state and, for ``void``, why."""

    state: DeadlineState
    reason: str | None = None


def judge(watched: Watched, now: datetime) -> Verdict | None:
    """Decide on an armed deadline at ``now`` (the database's clock, read under the run's lock); ``None``: still armed.

    Met: the run succeeded at or before the moment. Void: it failed or was cancelled before the moment, unless the
    alert fires on failure. Missed: the moment came first.
    """
    finished = watched.run_finished_at
    if finished is not None and finished <= watched.due_at:
        if watched.run_state == RunState.SUCCEEDED:
            return Verdict(S.MET)
        if not (watched.fire_on_failure and watched.run_state == RunState.FAILED):
            ended = "was cancelled" if watched.run_state == RunState.CANCELLED else "failed"
            return Verdict(S.VOID, f"the run {ended} before the moment")
        return Verdict(S.MISSED)
    return Verdict(S.MISSED) if now >= watched.due_at else None
