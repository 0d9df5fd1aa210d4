"""Backfills as data: a list of them, and all that is known about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import ValidationError
from sqlalchemy import Connection, RowMapping

from retrofill.errors import NotThere
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.batch_size import next_size
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import MACHINE
from retrofill_core.store import budgets, reviews
from retrofill_core.store.backfills import run_counts
from retrofill_core.store.clock import database_now
from retrofill_core.store.durations import recent
from retrofill_core.store.pipelines import codes
from retrofill_core.store.progress import costs, estimates
from retrofill_tools.client import estimates as expected
from retrofill_tools.client import pools, read_runs
from retrofill_tools.client import read as reads

# Longer ranges have a cell per month.
MAX_MONTHS = 36
# At most this many attempts that did not come to their end, and suspects.
ATTEMPTS = SUSPECTS = 10
SETTINGS = (
    "undoes",
    "max_active_runs",
    "reprocess_behavior",
    "run_backwards",
    "on_run_failure",
    "conf",
    "triggered_by",
)


def describe(conn: Connection, row: RowMapping, failures: int) -> dict[str, Any]:
    """The backfill as data, with at most ``failures`` of its failed runs.

    ``attempts``: the last ones that did not come to their end. ``suspects``: runs that are retried
    alone because a driver was lost with them. ``review``: the number of the present review, from 0, or of the next;
    ``changed_intervals``: those that it was approved for, and that somebody has changed since.
    """
    id = row["id"]
    by_state = run_counts(conn, id)
    times = reads.run_times(conn, id)
    until = row["ended_at"] or database_now(conn)
    zone, covers = row["definition"].get("timezone", "UTC"), row["covers"]
    changed = reviews.changed(conn, id) if row["state"] == BackfillState.IN_REVIEW else []
    return {
        **{name: row[name] for name in ("id", "pipeline", "state", "cancel_cause", "runs")},
        "held_back": held_back(dict(row))
        or _in_review(row, len(changed))
        or _used_up(conn, row)
        or pools.without_drivers(conn, row, by_state)
        or pools.not_begun(conn, id)
        or pools.unpublished(conn, row, by_state),
        "by_state": by_state,
        "purged": reads.purged(conn, row),
        "skipped": reads.skipped(conn, id),
        "timezone": zone,
        "range_start": covers.lower,
        "range_end": covers.upper,
        "calendar": calendar(conn, id, zone, covers.lower, covers.upper),
        **{name: row[name] for name in SETTINGS},
        "batch_size": batch_size(row["definition"], row["batch_size"]),
        "batch_mode": row["definition"].get("batch_mode", "each"),
        "batch_now": _batch_now(conn, row),
        "code_sha256": row["definition"].get("code", {}).get("sha256"),
        "latest_code": row["code_follows"],
        "runs_by_code": reads.runs_by_code(conn, id),
        "requested_at": row["requested_at"],
        **times,
        "ended_at": row["ended_at"],
        "runs_per_second": _rate(by_state, times["first_started_at"], until),
        "estimate": expected.as_json(estimates(conn, [reads.planned(row)], {id: by_state}, until).get(id)),
        "cost": costs(conn, [id]).get(id),
        "budget": _budget(row),
        "review": reads.planned(row).approved,
        "changed_intervals": changed,
        "failed_runs": _failures(conn, id, failures),
        "suspects": [_with_losses(each) for each in reads.suspects(conn, id, SUSPECTS)],
        "attempts": [dict(each) for each in reads.attempts_not_done(conn, id, ATTEMPTS)],
    }


def calendar(conn: Connection, id: str, zone: str, first: datetime, end: datetime) -> dict[str, Any]:
    """``unit`` (day or month) and ``cells``: the ``start`` and runs ``by_state`` of each that has intervals."""
    begin, last = (at.astimezone(ZoneInfo(zone)) for at in (first, end))
    months = (last.year - begin.year) * 12 + last.month - begin.month
    unit = "day" if months <= MAX_MONTHS else "month"
    return {"unit": unit, "cells": read_runs.days(conn, id, zone, unit)}


def existing(conn: Connection, id: str) -> RowMapping:
    """The row of a backfill. Raises ``NotThere``, which says why there is none."""
    row = reads.one_backfill(conn, id)
    if row is None:
        raise NotThere(missing(reads.recorded_answer(conn, id), id))
    return row


def missing(answer: dict[str, object] | None, id: str) -> str:
    """Why the backfill does not exist: it was rejected, was purged, or was never requested."""
    if answer is not None:
        rejected = answer.get("message")
        return f"backfill {id} was rejected: {rejected}" if rejected else f"backfill {id} ended long ago and was purged"
    return f"there is no backfill {id!r}: retrofill backfill list"


def held_back(row: Mapping[str, Any]) -> str | None:
    """Why no runs of an active backfill start: this release cannot read its pipeline definition."""
    if row["ended_at"] is not None:
        return None
    try:
        PipelineDefinition.model_validate(row["definition"])
    except ValidationError as e:
        return f"this release cannot read its pipeline definition; upgrade the run-starter or cancel it: {_fields(e)}"
    return None


def _budget(row: RowMapping) -> dict[str, Any] | None:
    budget = budgets.of_row(reads.planned(row))
    return None if budget is None else budget.model_dump(exclude_none=True)


def _in_review(row: RowMapping, changed: int) -> str | None:
    if row["state"] != BackfillState.IN_REVIEW:
        return None
    commands = (f"retrofill backfill {verb} {row['id']}" for verb in ("diff", "publish", "discard"))
    which = f", and somebody has changed what {changed:,} of its runs would replace" if changed else ""
    return f"its output waits for a review{which}: {', '.join(commands)}"


def _used_up(conn: Connection, row: RowMapping) -> str | None:
    """Why a resume would be refused."""
    if row["state"] != BackfillState.PAUSED:
        return None
    why = budgets.exceeded(conn, row["id"], budgets.of_row(reads.planned(row)))
    return None if why is None else f"its budget is used up: {why}; retrofill backfill resume {row['id']} --budget …"


def batch_size(definition: Mapping[str, Any], limit: int | None = None) -> int | str:
    """The size of a stored definition: ``auto`` if each attempt's is chosen."""
    if definition.get("batch_target_seconds"):
        return "auto"
    size = int(definition.get("batch_size", 1))
    return min(size, limit or size)


def _batch_now(conn: Connection, row: RowMapping) -> dict[str, Any] | None:
    """The chosen size of the next attempt (``runs``), and ``why``. ``None``: none is chosen."""
    if row["ended_at"] is not None or batch_size(row["definition"]) != "auto" or held_back(dict(row)) is not None:
        return None
    definition, no = PipelineDefinition.model_validate(row["definition"]), row["pipeline_no"]
    if row["code_follows"]:
        definition = definition.model_copy(update={"code": codes(conn, [no]).get(no, definition.code)})
    return asdict(next_size(definition.in_batches_of(row["batch_size"]), recent(conn, [no])[no]))


def _fields(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])


def _rate(by_state: Mapping[str, int], started: datetime | None, until: datetime) -> float | None:
    """Ended runs per second since the first one started."""
    ended = sum(count for state, count in by_state.items() if state in MACHINE.terminal)
    if started is None or ended == 0 or until <= started:
        return None
    return round(ended / (until - started).total_seconds(), 3)


def _failures(conn: Connection, id: str, limit: int) -> list[dict[str, Any]]:
    runs = reads.failed_runs(conn, id, limit)
    tasks: dict[int, list[dict[str, Any]]] = {}
    for row in reads.failed_tasks(conn, [run["id"] for run in runs]):
        found = {name: row[name] for name in ("task", "try_number", "error")}
        tasks.setdefault(row["run_id"], []).append(found)
    return [{**_with_losses(run), "failed_tasks": tasks.get(run["id"], [])} for run in runs]


def _with_losses(run: RowMapping) -> dict[str, Any]:
    return {**run, "losses": run["losses"].get("last", [])}
