"""A deadline fires once, and only if its subject was not done in time by the database clock.

Checked against the oracle's own sources: the alerts as the workload defined them, and the times at
which Postgres recorded the changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History, Row

PAST = "already past when it was armed"
Key = tuple[str, str]


def each_miss_is_told_once(history: History) -> Iterator[str]:
    """One ``DeadlineMissed`` for each missed row, and none for other rows."""
    fields = Counter(int(e.key) for e in history.of(Topic.DEADLINE_MISSED) if e.body["type"] == "DeadlineMissed")
    for row in history.rows("deadline"):
        if fields.pop(row["id"], 0) != (row["state"] == "missed"):
            yield f"deadline {row['id']} is {row['state']} and its misses were told another number of times"
    for id, count in fields.items():
        yield f"deadline {id} was told missed {count} times and has no row"


def moments_are_the_databases(history: History) -> Iterator[str]:
    """Each timestamp in a row lies within the recorded transaction of that change."""
    noted = _first_notes(history)
    for entity, id, name, to, moment in _claims(history):
        change = noted.get((entity, id, to))
        if moment is None or change is None:
            if (moment is None) != (change is None):
                yield f"{entity} {id}: {name} is {moment} and Postgres saw {change}"
            continue
        slack = history.clock_slack if _held_a_jump(change) else timedelta()
        if not change["began"] - slack <= moment <= change["at"] + slack:
            yield f"{entity} {id}: {name} is {moment}, it happened between {change['began']} and {change['at']}"


def _claims(history: History) -> Iterator[tuple[str, str, str, str, datetime | None]]:
    """(entity, id, column, state entered at that time, time)."""
    for row in history.rows("backfill"):
        yield "backfill", row["id"], "requested_at", "running", row["requested_at"]
        yield "backfill", row["id"], "ended_at", row["state"], row["ended_at"]
    for run in history.rows("run"):
        yield "run", str(run["id"]), "started_at", "running", run["started_at"]
        yield "run", str(run["id"]), "finished_at", run["state"], run["finished_at"]
    for row in history.rows("attempt"):
        yield "attempt", str(row["id"]), "claimed_at", "starting", row["claimed_at"]
        yield "attempt", str(row["id"]), "began_at", "running", row["began_at"]
        yield "attempt", str(row["id"]), "ended_at", "ended", row["ended_at"]
    for row in history.rows("deadline"):
        yield "deadline", str(row["id"]), "decided_at", row["state"], row["decided_at"]


def _first_notes(history: History) -> dict[tuple[str, str, str], Row]:
    noted: dict[tuple[str, str, str], Row] = {}
    for number, change in enumerate(history.changes):
        noted.setdefault((change["entity"], change["id"], change["to"]), {**change, "number": number})
    return noted


def each_deadline_is_due_when_its_alert_says(history: History) -> Iterator[str]:
    """The due time is the alert's reference time plus its interval."""
    for row, alert, reference in _with_alerts(history):
        if alert is None or reference is None:
            yield f"deadline {row['id']} ({row['alert']}) of {row['backfill_id']} belongs to no alert or has no reference"
        elif row["due_at"] != (due := _due(alert, reference)):
            yield f"deadline {row['id']} ({row['alert']}) is due {row['due_at']} instead of {due}"


def each_deadline_is_judged_right(history: History) -> Iterator[str]:
    """Each deadline ends as ``docs/deadlines.md`` says, and none is missed before it is due."""
    ends = {("run", str(row["id"])): (row["state"], row["finished_at"]) for row in history.rows("run")}
    ends |= {("backfill", row["id"]): (row["state"], row["ended_at"]) for row in history.rows("backfill")}
    retried = {run["id"] for run in history.rows("run") if run.get("superseded_by") is not None}
    noted = _first_notes(history)
    for row, alert, reference in _with_alerts(history):
        if alert is None or reference is None:
            continue
        due = _due(alert, reference)
        armed = noted.get(("deadline", str(row["id"]), "armed")) or noted.get(("deadline", str(row["id"]), "void"))
        end = ends.get(_subject(row), ("not there", None))
        expected = _expected(row, alert, due, end, armed, retried=row["run_id"] in retried)
        missed = noted.get(("deadline", str(row["id"]), "missed"))
        if missed is not None and _went_back_between(history, missed, noted.get((*_subject(row), end[0]))):
            # The subject had not ended at the miss, although the clock jump gave its end an earlier
            # timestamp.
            expected.add("missed")
        if row["state"] not in expected:
            yield (
                f"deadline {row['id']} ({row['alert']}) due {due} is {row['state']} ({row['reason']}) instead of "
                f"{' or '.join(sorted(expected))}: it was about what {ends.get(_subject(row))}"
            )
        if missed is not None and _latest(missed) < due:
            yield f"deadline {row['id']} ({row['alert']}) was missed at {missed['at']}, it was due {due}"


def _went_back_between(history: History, missed: Row, end: Row | None) -> bool:
    """Whether a clock jump gave an end after the miss an earlier timestamp than the miss."""
    return (
        bool(history.clock_slack) and end is not None and missed["number"] < end["number"] and end["at"] < missed["at"]
    )


def _held_a_jump(change: Row) -> bool:
    """Whether the clock went back during the transaction.

    Its timestamps are not comparable then.
    """
    return bool(change["at"] < change["began"])


def _latest(change: Row) -> datetime:
    """The latest time of a transaction, during which the clock may have gone back."""
    moment: datetime = max(change["began"], change["at"])
    return moment


def _expected(
    row: Row, alert: Row, due: datetime, end: tuple[str, datetime | None], armed: Row | None, *, retried: bool
) -> set[str]:
    if row["reason"] == PAST:
        past = armed is not None and armed["from"] is None and _latest(armed) >= due
        return {"void"} if past and not alert.get("fire_if_past") else {"not void"}
    state, ended_at = end
    if ended_at is None or ended_at > due:
        return {"missed"}
    if state == "succeeded":
        return {"met"}
    # One that would fire on the failure is void if the run was retried before that was decided.
    return ({"missed"} if alert.get("fire_on_failure") else {"void"}) | ({"void"} if retried else set())


def _with_alerts(history: History) -> Iterator[tuple[Row, Row | None, datetime | None]]:
    """Each deadline with its alert and its reference time."""
    alerts = {(name, alert["name"]): alert for name, found in history.alerts.items() for alert in found}
    backfills = {row["id"]: row for row in history.rows("backfill")}
    runs = {row["id"]: row for row in history.rows("run")}
    for row in history.rows("deadline"):
        backfill, run = backfills.get(row["backfill_id"], {}), runs.get(row["run_id"], {})
        alert = alerts.get((backfill.get("pipeline", "?"), row["alert"]))
        yield row, alert, None if alert is None else _reference(alert, backfill, run)


def _reference(alert: Row, backfill: Row, run: Row) -> datetime | None:
    moments: dict[str, Any] = {
        # Runs are queued when their backfill is planned, or when they replace others.
        "RUN_QUEUED_AT": run.get("queued_at", backfill.get("requested_at")),
        "RUN_STARTED_AT": run.get("started_at"),
        "BACKFILL_REQUESTED_AT": backfill.get("requested_at"),
    }
    moment: datetime | None = moments.get(alert["reference"])
    return moment


def _due(alert: Row, reference: datetime) -> datetime:
    return reference + timedelta(seconds=alert["interval_seconds"])


def _subject(row: Row) -> Key:
    return ("backfill", row["backfill_id"]) if row["run_id"] is None else ("run", str(row["run_id"]))


def each_run_has_its_deadlines(history: History) -> Iterator[str]:
    """One row for each alert of each run and backfill."""
    armed = Counter((row["backfill_id"], row["run_id"], row["alert"]) for row in history.rows("deadline"))
    for key, count in armed.items():
        if count > 1:
            yield f"{key} has {count} deadlines"
    pipelines = {row["id"]: row["pipeline"] for row in history.rows("backfill")}
    for run in history.rows("run"):
        for alert in history.alerts.get(pipelines.get(run["backfill_id"], "?"), ()):
            counts = alert["reference"] == "RUN_QUEUED_AT" or (
                alert["reference"] == "RUN_STARTED_AT" and run["started_at"] is not None
            )
            if counts and not armed[run["backfill_id"], run["id"], alert["name"]]:
                yield f"run {run['id']} has no deadline {alert['name']}"
    for id, pipeline in pipelines.items():
        for alert in history.alerts.get(pipeline, ()):
            if alert["reference"] == "BACKFILL_REQUESTED_AT" and not armed[id, None, alert["name"]]:
                yield f"backfill {id} has no deadline {alert['name']}"


PROMISES = (
    each_miss_is_told_once,
    moments_are_the_databases,
    each_deadline_is_due_when_its_alert_says,
    each_deadline_is_judged_right,
    each_run_has_its_deadlines,
)
