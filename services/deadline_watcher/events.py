"""Builds the messages and callbacks about missed deadlines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from deadline_watcher.decide import state_of
from retrofill_core.contract.base import Message
from retrofill_core.contract.deadlines import DeadlineFacts, DeadlineMissed, DeadlineRecovered, DeadlinesMissed
from retrofill_core.deadlines.calling import expanded
from retrofill_core.domain.alert import Reference
from retrofill_core.domain.callback import order_key
from retrofill_core.domain.deadline import Scope
from retrofill_core.domain.templates import in_zone
from retrofill_core.store.callbacks import NewCallback
from retrofill_core.store.deadlines import Deadline
from retrofill_core.store.digests import Window
from retrofill_core.store.subjects import BackfillFacts, TaskEnds

# Upper bound for a digest without its list: names, times, and a URL of 2,000 characters.
HEAD_BYTES = 10_000


def missed(one: Deadline, backfill: BackfillFacts, tasks: TaskEnds, now: datetime) -> DeadlineMissed:
    """The event of a deadline that is found missed ``now``."""
    return DeadlineMissed(**_facts(one, backfill, tasks, now), callback=one.callback)


def in_digest(one: Deadline, backfill: BackfillFacts, tasks: TaskEnds) -> DeadlineFacts:
    """What a digest lists about one of its misses."""
    return DeadlineFacts(**_facts(one, backfill, tasks, one.decided_at), recovered_at=one.recovered_at)


def _facts(one: Deadline, backfill: BackfillFacts, tasks: TaskEnds, detected_at: datetime | None) -> dict[str, Any]:
    return {
        "deadline_id": one.id,
        "alert": one.alert,
        "scope": one.scope,
        "pipeline": one.pipeline,
        "backfill_id": one.backfill_id,
        "run_id": one.run_id,
        "task": one.task,
        "interval_start": one.interval_start,
        "interval_end": one.interval_end,
        "reference": Reference(one.reference),
        "interval_seconds": one.interval_seconds,
        "due_at": one.due_at,
        "detected_at": detected_at,
        "run_state": state_of(one, tasks),
        "run_attempt": one.run_attempt,
        "runs_done": backfill.runs_done,
        "runs": backfill.runs,
    }


def digest(
    window: Window, callback: str | None, missed: Sequence[DeadlineFacts], count: int, now: datetime, max_bytes: int
) -> list[DeadlinesMissed]:
    """The event of a window's ``count`` misses, in parts of at most ``max_bytes``."""
    parts = list(_parts(missed, max_bytes - HEAD_BYTES))
    return [
        DeadlinesMissed(
            digest_id=window.id,
            alert=window.alert,
            pipeline=window.pipeline,
            opened_at=window.opened_at,
            closed_at=now,
            count=count,
            not_listed=count - len(missed),
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


def recovered(one: Deadline, at: datetime) -> DeadlineRecovered:
    """The event of a missed deadline whose run, task or backfill succeeded later."""
    return DeadlineRecovered(
        deadline_id=one.id,
        alert=one.alert,
        scope=one.scope,
        pipeline=one.pipeline,
        backfill_id=one.backfill_id,
        run_id=one.run_id,
        task=one.task,
        interval_start=one.interval_start,
        interval_end=one.interval_end,
        due_at=one.due_at,
        recovered_at=at,
        late_seconds=(at - one.due_at).total_seconds(),
    )


def callback(
    one: Deadline, name: str, about: DeadlineFacts, event: Message, timezone: str, now: datetime, count: int = 1
) -> NewCallback:
    """The callback ``name`` of a miss, or of a digest whose first miss is ``one``; it is called with ``event``."""
    # A digest may be about many backfills.
    of_backfill = one.scope == Scope.BACKFILL and one.digest_id is None
    return NewCallback(
        deadline_id=one.id,
        shard=one.shard,
        name=name,
        kind=one.callback_kind,
        options=one.callback_options,
        kwargs=expanded(one.kwargs, template_fields(about, timezone, count), deadline=one.id),
        event=event.model_dump(mode="json", by_alias=True, exclude_none=True),
        pipeline=one.pipeline,
        next_try_at=now,
        order_key=order_key(one.callback_kind, name, one.callback_options, one.backfill_id) if of_backfill else None,
    )


def template_fields(about: DeadlineFacts, timezone: str, count: int = 1) -> Mapping[str, Any]:
    """The fields that templates may refer to, with times in the pipeline's time zone."""
    fields = {
        "deadline.id": about.deadline_id,
        "deadline.alert": about.alert,
        "deadline.reference": str(about.reference),
        "deadline.due_at": about.due_at,
        "deadline.detected_at": about.detected_at,
        "deadline.late_seconds": (about.detected_at - about.due_at).total_seconds(),
        "pipeline": about.pipeline,
        "backfill.id": about.backfill_id,
        "backfill.runs": about.runs,
        "backfill.runs_done": about.runs_done,
        "run.id": about.run_id,
        "run.logical_date": about.interval_start,
        "run.interval_start": about.interval_start,
        "run.interval_end": about.interval_end,
        "run.state": about.run_state,
        "run.attempt": about.run_attempt,
        "task": about.task,
        "digest.count": count,
    }
    return in_zone(fields, timezone)
