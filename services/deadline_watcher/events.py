"""Builds the messages and callbacks about missed deadlines from their rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from deadline_watcher.decide import Row, TaskEnds, scope_of, task_state
from retrofill_core.contract.base import Message
from retrofill_core.contract.deadlines import DeadlineFacts, DeadlineMissed, DeadlineRecovered, DeadlinesMissed
from retrofill_core.deadlines.calling import expanded
from retrofill_core.domain.alert import Reference
from retrofill_core.domain.deadline import Scope
from retrofill_core.domain.templates import in_zone
from retrofill_core.store.subjects import BackfillFacts

# Upper bound for a digest without its list: names, times, and a URL of 2,000 characters.
HEAD_BYTES = 10_000


def facts(row: Row, backfill: BackfillFacts, tasks: TaskEnds, detected_at: datetime) -> dict[str, Any]:
    """The fields of ``DeadlineFacts`` for one missed deadline."""
    scope = scope_of(row)
    state = task_state(tasks.get((row["run_id"], row["task"]), ())) if scope == Scope.TASK else row["run_state"]
    return {
        "deadline_id": row["id"],
        "alert": row["alert"],
        "scope": scope,
        "pipeline": row["pipeline"],
        "backfill_id": row["backfill_id"],
        "run_id": row["run_id"],
        "task": row["task"],
        "interval_start": row["interval_start"],
        "interval_end": row["interval_end"],
        "reference": Reference(row["reference"]),
        "interval_seconds": row["interval_seconds"],
        "due_at": row["due_at"],
        "detected_at": detected_at,
        "run_state": state,
        "run_attempt": row["run_attempt"],
        "runs_done": backfill.runs_done,
        "runs": backfill.runs,
    }


def missed(row: Row, fields: Mapping[str, Any]) -> DeadlineMissed:
    return DeadlineMissed(**fields, callback=row["callback"])


def digest(
    window: Mapping[str, Any],
    callback: str | None,
    fields: Sequence[Mapping[str, Any]],
    count: int,
    now: datetime,
    max_bytes: int,
) -> list[DeadlinesMissed]:
    """The event of a window's ``count`` misses, in parts of at most ``max_bytes``."""
    parts = list(_parts([DeadlineFacts(**each) for each in fields], max_bytes - HEAD_BYTES))
    return [
        DeadlinesMissed(
            digest_id=window["id"],
            alert=window["alert"],
            pipeline=window["pipeline"],
            opened_at=window["opened_at"],
            closed_at=now,
            count=count,
            not_listed=count - len(fields),
            part=number,
            parts=len(parts),
            missed=part,
            callback=callback,
        )
        for number, part in enumerate(parts, 1)
    ]


def _parts(missed: Sequence[DeadlineFacts], max_bytes: int) -> Iterable[list[DeadlineFacts]]:
    part: list[DeadlineFacts] = []
    size = 0
    for each in missed:
        length = len(each.model_dump_json(exclude_none=True).encode()) + 1
        if part and size + length > max_bytes:
            yield part
            part, size = [], 0
        part.append(each)
        size += length
    if part:
        yield part


def recovered(row: Row, at: datetime) -> DeadlineRecovered:
    """The event of a missed deadline whose run, task or backfill succeeded later."""
    return DeadlineRecovered(
        deadline_id=row["id"],
        alert=row["alert"],
        scope=scope_of(row),
        pipeline=row["pipeline"],
        backfill_id=row["backfill_id"],
        run_id=row["run_id"],
        task=row["task"],
        interval_start=row["interval_start"],
        interval_end=row["interval_end"],
        due_at=row["due_at"],
        recovered_at=at,
        late_seconds=(at - row["due_at"]).total_seconds(),
    )


def callback(row: Row, fields: Mapping[str, Any], event: Message, timezone: str, count: int = 1) -> dict[str, Any]:
    """The columns of the callback of a miss, or of a digest whose first miss is ``row``."""
    return {
        "deadline_id": row["id"],
        "name": row["callback"],
        "kind": row["callback_kind"],
        "options": row["callback_options"],
        "kwargs": expanded(row["kwargs"], _fields(fields, timezone, count), deadline=row["id"]),
        "event": event.model_dump(mode="json", by_alias=True, exclude_none=True),
        "pipeline": row["pipeline"],
    }


def _fields(fields: Mapping[str, Any], timezone: str, count: int) -> dict[str, Any]:
    """The fields that templates may refer to, with times in the pipeline's time zone."""
    local = in_zone(fields, timezone)
    return {
        "deadline.id": local["deadline_id"],
        "deadline.alert": local["alert"],
        "deadline.reference": str(local["reference"]),
        "deadline.due_at": local["due_at"],
        "deadline.detected_at": local["detected_at"],
        "deadline.late_seconds": (local["detected_at"] - local["due_at"]).total_seconds(),
        "pipeline": local["pipeline"],
        "backfill.id": local["backfill_id"],
        "backfill.runs": local["runs"],
        "backfill.runs_done": local["runs_done"],
        "run.id": local["run_id"],
        "run.logical_date": local["interval_start"],
        "run.interval_start": local["interval_start"],
        "run.interval_end": local["interval_end"],
        "run.state": local["run_state"],
        "run.attempt": local["run_attempt"],
        "task": local["task"],
        "digest.count": count,
    }
