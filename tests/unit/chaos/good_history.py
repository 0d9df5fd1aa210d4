"""A small correct history for the oracle's tests: two days of one backfill, a refusal, and an
unreadable message.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

from psycopg.types.range import Range
from tests.chaos.history import History, Wish
from tests.chaos.work import content
from tests.support.events import Event

DAYS = [datetime(2001, 1, n, tzinfo=UTC) for n in (1, 2, 3)]
BEGAN = datetime(2024, 5, 1, 12, tzinfo=UTC)
SECOND = ("p", "2001-01-02")
WRITTEN_BY_OTHERS = ("backfill-requests", "run-reports")
ALERT = {"name": "soon", "reference": "RUN_QUEUED_AT", "interval_seconds": 5, "callback": {"name": "hook"}}


def at(seconds: float) -> datetime:
    """The moment ``seconds`` after the request."""
    return BEGAN + timedelta(seconds=seconds)


def event(key: str | int, type: str, **body: Any) -> Event:
    """An event as a subscriber reads it."""
    fields = {"type": type, **{k: v.isoformat() if isinstance(v, datetime) else v for k, v in body.items()}}
    event.count += 1  # type: ignore[attr-defined]
    return Event(0, event.count, str(key), fields, {"ce_id": f"e{event.count}"}, json.dumps(fields).encode())  # type: ignore[attr-defined]


event.count = 0  # type: ignore[attr-defined]


def run_event(type: str, run: int, attempt: int, seconds: float, **more: Any) -> Event:
    """An event of run-events."""
    return event("b", type, pipeline="p", run_id=run, attempt=attempt, at=at(seconds), **more)


def rejection(command: Event) -> Event:
    """The answer that refuses a command."""
    about = {"in_reply_to": command.headers["ce_id"], "command": command.body["type"]}
    return event(command.key, "BackfillCommandRejected", **about)


def good() -> History:
    """Two days of one backfill with limit 1. The first attempt has both as a batch, which ends with
    the first day's failure. The second day is lost once, and misses its deadline. A command comes after the end.
    """
    runs = [
        run_row(1, DAYS[0], "failed", attempt=1, attempt_id=11, started_at=at(1), finished_at=at(2)),
        run_row(
            2, DAYS[1], "succeeded", attempt=2, attempt_id=13, accepted_attempt=13, started_at=at(3), finished_at=at(9)
        ),
    ]
    attempts = [
        attempt_row(11, 0, 2, "done", 0.5, 1, 2),
        attempt_row(12, 1, 1, "lost", 2.5, 3, 4),
        {**attempt_row(13, 1, 1, "done", 5.5, 6, 9), "suspect_server": "sc://spark"},
    ]
    command = event("b", "BackfillPauseRequested")
    deadlines = [deadline_row(1, 1, "void", due=at(5)), deadline_row(2, 2, "missed", due=at(5))]
    history = History(
        wishes={
            "b": Wish("b", "p", date(2001, 1, 1), date(2001, 1, 2), limit=1, failing=frozenset({"2001-01-01"})),
            "late": Wish("late", "p", date(2001, 1, 2), date(2001, 1, 3)),
        },
        limits={"p": 1},
        batches={"p": 2},
        tables={
            "backfill": [backfill_row("b", "failed")],
            "backfill_interval": [
                {"backfill_id": "b", "interval_start": day, "run_id": n + 1, "reason": None}
                for n, day in enumerate(DAYS[:2])
            ],
            "backfill_request": [{"id": "b", "decided_at": at(0)}, {"id": "late", "decided_at": at(5)}],
            "backfill_command": [{"backfill_id": "b", "ce_id": command.headers["ce_id"], "decided_at": at(11)}],
            "run": runs,
            "attempt": attempts,
            "host": [{"id": 1, "pool": "default"}],
            "seat": [{"host_id": 1, "no": 1, "attempt_id": None}],
            "task_run": [task_row(1, 1, "failed"), task_row(2, 1, "cancelled"), task_row(2, 2, "succeeded")],
            "deadline": deadlines,
            "callback": [callback_row(2), callback_row(3, "run_failed"), callback_row(4, "backfill_failed")],
            "callback_run": [{"run_id": 1, "place": 0, "callback_id": 3}],
            "run_starter_outbox": [],
            "run_starter_relay": [{"batch": 7, "batch_ids": []}],
            "run_starter_shard_offset": [{"topic": "run-reports", "partition": 0, "next_offset": 9}],
        },
        events={
            "backfill-requests": [command],
            "backfill-events": [
                event("b", "BackfillPlanned", backfill_id="b", runs=2, skipped={"y": 1, "x": 2}, in_reply_to="r1"),
                event("b", "BackfillFailed", backfill_id="b"),
                # A repeated answer comes from the row, whose keys are sorted.
                event("b", "BackfillPlanned", backfill_id="b", runs=2, skipped={"x": 2, "y": 1}, in_reply_to="r2"),
                event("late", "BackfillRejected", backfill_id="late", reason="overlap", conflicting_backfill_id="b"),
                rejection(command),
            ],
            "run-events": [
                run_event("RunStarted", 1, 1, 1, attempt_id=11),
                run_event("RunFailed", 1, 1, 2),
                run_event("RunStarted", 2, 1, 3, attempt_id=12),
                run_event("RunAttemptLost", 2, 1, 4),
                run_event("RunStarted", 2, 2, 6, attempt_id=13),
                run_event("RunSucceeded", 2, 2, 9),
            ],
            "run-reports": [
                event("b", "RunStaged", run_id=2, attempt_id=13, attempt=2),
                event("b", "RunReported", run_id=2, attempt_id=13, attempt=2, state="succeeded"),
            ],
            "deadline-missed": [event(2, "DeadlineMissed", deadline_id=2)],
            "callback-events": [
                event(2, "CallbackSucceeded", deadline_id=2),
                event(3, "RunsFailed", callback_id=3, count=1, failed=[{"run_id": 1}]),
                event(3, "CallbackSucceeded", deadline_id=3),
                event(4, "CallbackSucceeded", deadline_id=4),
            ],
            "dead-letters": [letter("run-reports", 3, "poison-1", b"{")],
        },
        notes=[
            note(1, 1, "2001-01-01", 101),
            note(1, 1, "2001-01-01", 102),
            note(2, 1, "2001-01-02", 103),
            note(2, 1, "2001-01-02", 104),
            note(2, 2, "2001-01-02", 106),
            note(2, 2, "2001-01-02", 109),
        ],
        outputs={SECOND: content(*SECOND, "b", 13)},
        markers={SECOND: {"run_id": 2, "attempt_id": 13}},
        calls=[
            {"deadline": 2, "key": "k", "at": at(6.5)},
            {"deadline": 3, "key": "f", "at": at(7.5)},
            {"deadline": 4, "key": "e", "at": at(10.5)},
        ],
        alerts={"p": [ALERT]},
        lists={"p": {"run_failed": 1, "backfill_failed": 1, "backfill_succeeded": 1}},
        changes=changes(),
        poison={"run-reports": [Event(0, 3, "poison-1", {}, {}, b"{")]},
        poisoned={"poison-1"},
        sampled={"b": 1, "pipeline:p": 1},
        ends={("run_starter", "run-reports", 0): 9},
    )
    history.committed = [
        {
            "service": "s", "topic": topic, "key": e.key, "ce_id": e.headers.get("ce_id"),
            "digest": hashlib.md5(e.value, usedforsecurity=False).hexdigest(),
        }
        for topic, events in history.events.items() for e in events if topic not in WRITTEN_BY_OTHERS
    ]  # fmt: skip
    return history


def changes() -> list[dict[str, Any]]:
    """The history's changes as Postgres's triggers recorded them."""
    return [
        change("backfill", "b", None, "running", 0),
        change("deadline", 1, None, "armed", 0),
        change("deadline", 2, None, "armed", 0),
        change("attempt", 11, None, "starting", 0.5),
        change("run", 1, "queued", "starting", 0.5, 0, 11),
        change("run", 2, "queued", "starting", 0.5, 0, 11),
        *_began(1, 1, 11, 1),
        *_ended(1, 1, 11, 2, "failed", "failed"),
        change("run", 2, "starting", "queued", 2, 0, 11),
        change("attempt", 11, "running", "ended", 2),
        change("deadline", 1, "armed", "void", 2),
        change("attempt", 12, None, "starting", 2.5),
        change("run", 2, "queued", "starting", 2.5, 0, 12),
        *_began(2, 1, 12, 3),
        *_ended(2, 1, 12, 4, "queued", "cancelled"),
        change("attempt", 12, "running", "ended", 4),
        change("attempt", 13, None, "starting", 5.5),
        change("run", 2, "queued", "starting", 5.5, 1, 13),
        *_began(2, 2, 13, 6),
        *_ended(2, 2, 13, 9, "succeeded", "succeeded"),
        change("attempt", 13, "running", "ended", 9),
        change("deadline", 2, "armed", "missed", 6),
        change("callback", 2, None, "pending", 6),
        change("callback", 2, "pending", "running", 6.2, 1),
        change("callback", 2, "running", "succeeded", 6.8, 1),
        *_called(3, 2, 7, 7.8),
        change("backfill", "b", "running", "failed", 10),
        *_called(4, 10, 10.2, 10.8),
    ]


def _called(callback: int, inserted: float, claimed: float, ended: float) -> list[dict[str, Any]]:
    return [
        change("callback", callback, None, "pending", inserted),
        change("callback", callback, "pending", "running", claimed, 1),
        change("callback", callback, "running", "succeeded", ended, 1),
    ]


def _began(run: int, number: int, attempt: int, seconds: float) -> list[dict[str, Any]]:
    return [
        change("attempt", attempt, "starting", "running", seconds),
        change("run", run, "starting", "running", seconds, number, attempt),
        change("task_run", run, "none", "queued", seconds, number),
        change("task_run", run, "queued", "running", seconds, number),
    ]


def _ended(run: int, number: int, attempt: int, seconds: float, to: str, task: str) -> list[dict[str, Any]]:
    return [
        change("run", run, "running", to, seconds, number, attempt),
        change("task_run", run, "running", task, seconds, number),
    ]


def change(
    entity: str,
    id: int | str,
    was: str | None,
    to: str,
    seconds: float,
    number: int | None = None,
    attempt: int | None = None,
) -> dict[str, Any]:
    """One change recorded by a trigger. Each moment is a transaction of its own."""
    return {
        "entity": entity, "id": str(id), "from": was, "to": to, "attempt": number, "attempt_id": attempt,
        "task": "only", "tx": f"{seconds}", "began": at(seconds), "at": at(seconds),
    }  # fmt: skip


def letter(topic: str, offset: int, key: str, value: bytes) -> Event:
    """A dead letter for a message from partition 0."""
    origin = {"topic": topic, "partition": "0", "offset": str(offset)}
    return Event(0, 0, key, {}, {f"retrofill_origin_{name}": text for name, text in origin.items()}, value)


def task_row(run: int, attempt: int, state: str) -> dict[str, Any]:
    return {"run_id": run, "attempt": attempt, "task": "only", "state": state, "finished_at": at(9)}


def backfill_row(id: str, state: str) -> dict[str, Any]:
    return {
        "id": id,
        "pipeline": "p",
        "state": state,
        "runs": 2,
        "max_active_runs": 1,
        "cancel_cause": None,
        "definition": {"run_timeout_seconds": 60.0},
        "covers": Range(DAYS[0], DAYS[2]),
        "requested_at": at(0),
        "ended_at": at(10),
    }


def run_row(id: int, day: datetime, state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": id, "backfill_id": "b", "interval_start": day, "interval_end": day + timedelta(days=1), "position": id - 1,
        "state": state, "error": None, "losses": {}, "accepted_attempt": None, "superseded_by": None,
        **more,
    }  # fmt: skip


def attempt_row(
    id: int, position: int, runs: int, outcome: str, claimed: float, began: float, ended: float
) -> dict[str, Any]:
    nothing = dict.fromkeys(["slot", "pipeline_slot", "suspect_server", "lease_until", "error"])
    return {
        "id": id, "backfill_id": "b", "mode": "each", "position": position, "runs": runs, "state": "ended",
        "outcome": outcome, "claimed_at": at(claimed), "began_at": at(began), "ended_at": at(ended), "host_id": 1, **nothing,
    }  # fmt: skip


def deadline_row(id: int, run: int, state: str, due: datetime) -> dict[str, Any]:
    return {
        "id": id, "run_id": run, "backfill_id": "b", "alert": "soon", "state": state, "due_at": due, "reason": None,
        "decided_at": at(2) if run == 1 else at(6),
    }  # fmt: skip


def callback_row(id: int, occasion: str | None = None) -> dict[str, Any]:
    return {
        "deadline_id": id, "state": "succeeded", "attempts": 1, "token": None, "lease_until": None, "last_error": None,
        "occasion": occasion, "backfill_id": "b" if occasion else None, "place": 0 if occasion else None,
        "order_key": "hook b" if occasion else None, "made_at": at(id), "options": {}, "event": {"type": "Something"},
    }  # fmt: skip


def note(run: int, attempt: int, day: str, seconds: float, process: int = 1) -> dict[str, Any]:
    """One line that a driver logged at work."""
    return {
        "pipeline": "p", "backfill": "b", "run": run, "attempt": attempt, "process": process, "days": [day], "at": seconds,
    }  # fmt: skip
