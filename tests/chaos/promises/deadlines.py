"""A deadline fires once, and only if what it is about was not done in time, by the database's clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from retrofill.bus.topics import Topic
from tests.chaos.history import History, Row


def each_miss_is_told_once(history: History) -> Iterator[str]:
    """One ``DeadlineMissed`` for each row that is missed, none for the others."""
    told = Counter(int(e.key) for e in history.of(Topic.DEADLINE_MISSED) if e.body["type"] == "DeadlineMissed")
    for row in history.rows("deadline"):
        if told.pop(row["id"], 0) != (row["state"] == "missed"):
            yield f"deadline {row['id']} is {row['state']} and its misses were told another number of times"
    for id, count in told.items():
        yield f"deadline {id} was told missed {count} times and has no row"


def each_deadline_is_judged_right(history: History) -> Iterator[str]:
    """The rule of ``docs/deadlines.md``, computed from the rows of runs and backfills."""
    runs = {row["id"]: (row["state"], row["finished_at"]) for row in history.rows("run")}
    backfills = {row["id"]: (row["state"], row["ended_at"]) for row in history.rows("backfill")}
    for row in history.rows("deadline"):
        known = backfills.get(row["backfill_id"]) if row["run_id"] is None else runs.get(row["run_id"])
        state, at = known or ("not there", None)
        expected = _expected(row, state, at)
        if row["state"] != expected:
            yield (
                f"deadline {row['id']} ({row['alert']}) due {row['due_at']} is {row['state']} instead of {expected}: "
                f"it was about what {state} at {at}"
            )


def _expected(row: Row, state: str, ended_at: datetime | None) -> str:
    if row["reason"] == "already past when it was armed":
        return "void"
    in_time = ended_at is not None and ended_at <= row["due_at"]
    if not in_time:
        return "missed"
    if state == "succeeded":
        return "met"
    return "missed" if row["fire_on_failure"] else "void"


def each_run_has_its_deadlines(history: History) -> Iterator[str]:
    """One row for each alert of a run, and of a backfill."""
    armed = Counter((row["backfill_id"], row["run_id"], row["alert"]) for row in history.rows("deadline"))
    for key, count in armed.items():
        if count > 1:
            yield f"{key} has {count} deadlines"
    definitions = {row["id"]: row["definition"] for row in history.rows("backfill")}
    for run in history.rows("run"):
        for alert in definitions.get(run["backfill_id"], {}).get("deadlines", ()):
            started = alert["reference"] == "RUN_QUEUED_AT" or (
                alert["reference"] == "RUN_STARTED_AT" and run["started_at"] is not None
            )
            if started and not armed[run["backfill_id"], run["id"], alert["name"]]:
                yield f"run {run['id']} has no deadline {alert['name']}"


PROMISES = (each_miss_is_told_once, each_deadline_is_judged_right, each_run_has_its_deadlines)
