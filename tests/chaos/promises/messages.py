"""Every event appears once and in order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History

# Topics that services publish through their outboxes. Users and drivers, who may repeat themselves,
# write the others.
PUBLISHED = (
    Topic.PIPELINE_EVENTS,
    Topic.BACKFILL_EVENTS,
    Topic.RUN_EVENTS,
    Topic.DEADLINES,
    Topic.DEADLINE_MISSED,
    Topic.CALLBACK_REQUESTS,
    Topic.CALLBACK_EVENTS,
    Topic.BACKFILL_STATES,
    Topic.INTERVAL_STATES,
)
# Topics whose events carry a database time, and the field that has it.
MOMENTS = {Topic.RUN_EVENTS: "at"}


def every_event_once(history: History) -> Iterator[str]:
    """With read_committed, no ``ce_id`` appears twice."""
    for topic in PUBLISHED:
        places: dict[str | None, list[str]] = {}
        for event in history.of(topic):
            places.setdefault(event.headers.get("ce_id"), []).append(f"{event.partition}@{event.offset}")
        for id, found in places.items():
            if id is None or len(found) > 1:
                yield f"{topic}: {len(found)} events with ce_id {id}, at {', '.join(found)}"


def events_are_in_order(history: History) -> Iterator[str]:
    """The database times of a key's events never decrease."""
    for topic, name in MOMENTS.items():
        last: dict[str, datetime] = {}
        for event in history.of(topic):
            at = datetime.fromisoformat(event.body[name])
            if at < last.get(event.key, at):
                yield f"{topic}: {event.key} went back from {last[event.key]} to {at} ({event.body['type']})"
            last[event.key] = max(at, last.get(event.key, at))


def a_backfill_is_told_in_order(history: History) -> Iterator[str]:
    """``BackfillPlanned`` comes first; after the end, only replies follow."""
    ended: set[str] = set()
    planned: set[str] = set()
    for event in history.of(Topic.BACKFILL_EVENTS):
        kind, answer = event.body["type"], "in_reply_to" in event.body
        if kind == "BackfillPlanned":
            planned.add(event.key)
        elif kind not in ("BackfillRejected", "BackfillCommandRejected") and event.key not in planned:
            yield f"{event.key}: {kind} before it was planned"
        if event.key in ended and not answer:
            yield f"{event.key}: {kind} after its end"
        if kind in ("BackfillSucceeded", "BackfillFailed", "BackfillCancelled"):
            ended.add(event.key)


PROMISES = (every_event_once, events_are_in_order, a_backfill_is_told_in_order)
