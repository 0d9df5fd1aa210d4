"""Each accepted backfill ends once, and each interval has the outcome that its request implies."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History, Row, Wish
from tests.chaos.work import label

ENDS = {"BackfillSucceeded": "succeeded", "BackfillFailed": "failed", "BackfillCancelled": "cancelled"}
ANSWERS = ("BackfillPlanned", "BackfillRejected")


def every_request_is_answered(history: History) -> Iterator[str]:
    """All replies to a request have the same outcome, and a planned one has its row."""
    answers = defaultdict(set)
    for event in history.of(Topic.BACKFILL_EVENTS):
        if event.body["type"] in ANSWERS:
            answer = {k: v for k, v in event.body.items() if k != "in_reply_to"}
            answers[event.key].add(json.dumps(answer, sort_keys=True))
    planned = {row["id"] for row in history.rows("backfill")}
    for id in history.wishes:
        if len(answers[id]) != 1:
            yield f"{id} has {len(answers[id])} different answers"
        elif ("BackfillPlanned" in next(iter(answers[id]))) != (id in planned):
            yield f"{id} was answered {answers[id]} but has {'a' if id in planned else 'no'} row"


def every_backfill_ends_once(history: History) -> Iterator[str]:
    """One end event per row, matching the row's state.

    Replies to repeated commands do not count.
    """
    ends = defaultdict(list)
    for event in history.of(Topic.BACKFILL_EVENTS):
        if event.body["type"] in ENDS and "in_reply_to" not in event.body:
            ends[event.key].append(ENDS[event.body["type"]])
    for row in history.rows("backfill"):
        if ends[row["id"]] != [row["state"]]:
            yield f"{row['id']} is {row['state']} and its ends are {ends[row['id']]}"


def progress_is_announced_once(history: History) -> Iterator[str]:
    """Each backfill's progress is numbered without gaps, and each says something new."""
    last: dict[str, Row] = {}
    for event in history.of(Topic.BACKFILL_EVENTS):
        if event.body["type"] != "BackfillProgress":
            continue
        before = last.get(event.key, {"sequence": 0, "runs_by_state": None})
        if event.body["sequence"] != before["sequence"] + 1 or event.body["runs_by_state"] == before["runs_by_state"]:
            yield f"{event.key} announced {event.body} after {before}"
        last[event.key] = event.body


def every_interval_has_its_outcome(history: History) -> Iterator[str]:
    """A row for every requested day, and for each run a state that the request implies."""
    intervals = defaultdict(list)
    for row in history.rows("backfill_interval"):
        intervals[row["backfill_id"]].append(row)
    runs = defaultdict(list)
    for run in history.rows("run"):
        runs[run["backfill_id"]].append(run)
    by_itself = {row["run_id"] for row in history.rows("run_cancel")}
    by_user = _cancelled_by_users(history)
    for row in history.rows("backfill"):
        wish = history.wishes.get(row["id"])
        if wish is None:
            yield f"nobody asked for {row['id']}"
            continue
        days = sorted(label(each["interval_start"]) for each in intervals[wish.id])
        if days != wish.days:
            yield f"{wish.id} has {len(days)} intervals instead of {len(wish.days)}"
        made = {each["run_id"] for each in intervals[wish.id] if each["run_id"] is not None}
        retries = {run.get("superseded_by") for run in runs[wish.id]}
        if made != {run["id"] for run in runs[wish.id]} - retries or len(made) != row["runs"]:
            yield f"{wish.id} says {row['runs']} runs, its intervals name {len(made)}, there are {len(runs[wish.id])}"
        current = [run for run in runs[wish.id] if run.get("superseded_by") is None]
        asked, cancelled = wish.id in by_user, wish.id in history.cancelled
        yield from _outcomes(wish, row, current, by_itself, asked=asked, cancelled=cancelled)


def _cancelled_by_users(history: History) -> set[str]:
    """Backfills that began to cancel in reply to a command, not over a failed run."""
    first: dict[str, Row] = {}
    for event in history.of(Topic.BACKFILL_EVENTS):
        if event.body["type"] == "BackfillCancelling":
            first.setdefault(event.key, event.body)
    return {id for id, body in first.items() if "in_reply_to" in body}


def _outcomes(
    wish: Wish, row: Row, runs: list[Row], by_itself: set[int], *, asked: bool, cancelled: bool
) -> Iterator[str]:
    """``by_itself``: the runs whose own cancel was accepted. ``asked``: a user's cancel was, ``cancelled``: one was sent."""
    states = Counter(run["state"] for run in runs)
    stops = cancelled or (wish.on_run_failure == "cancel" and states["failed"] > 0)
    for run in runs:
        day = label(run["interval_start"])
        may_be_cancelled = stops or run["id"] in by_itself
        expected = {"failed" if day in wish.fails else "succeeded"} | ({"cancelled"} if may_be_cancelled else set())
        if run["state"] not in expected:
            yield f"{wish.id}: {day} is {run['state']} instead of {' or '.join(sorted(expected))}"
    state = "cancelled" if asked else "failed" if states["failed"] or states["cancelled"] else "succeeded"
    if row["state"] != state:
        yield f"{wish.id} is {row['state']} instead of {state} (runs: {dict(states)})"
    if asked and not cancelled:
        yield f"{wish.id} was cancelled by a user who never was"


def retries_replace_failed_runs(history: History) -> Iterator[str]:
    """A run that was retried failed, and the one that replaces it is of its interval. It was inserted
    before the backfill ended.
    """
    runs = {run["id"]: run for run in history.rows("run")}
    ended = {row["id"]: row["ended_at"] for row in history.rows("backfill")}
    for old in runs.values():
        new = runs.get(old.get("superseded_by"))
        if old.get("superseded_by") is None:
            continue
        same = ("backfill_id", "interval_start", "position")
        if new is None or old["state"] != "failed" or any(old[name] != new[name] for name in same):
            yield f"run {old['id']} is {old['state']} and was replaced by {new}"
        elif (end := ended.get(new["backfill_id"])) is not None and new["queued_at"] > end + history.clock_slack:
            yield f"run {new['id']} is a retry at {new['queued_at']}, its backfill ended at {end}"


def one_active_backfill_of_an_interval(history: History) -> Iterator[str]:
    """Backfills of one pipeline that share a day were never active at the same time."""
    by_pipeline = defaultdict(list)
    for row in history.rows("backfill"):
        by_pipeline[row["pipeline"]].append(row)
    for rows in by_pipeline.values():
        rows.sort(key=lambda row: row["requested_at"])
        for n, first in enumerate(rows):
            for second in rows[n + 1 :]:
                group = first["ended_at"] is None or second["requested_at"] < first["ended_at"]
                if group and not set(_days(first)).isdisjoint(_days(second)):
                    yield f"{first['id']} and {second['id']} shared days and were active together"


def _days(row: Row) -> range:
    covers = row["covers"]
    return range(covers.lower.toordinal(), covers.upper.toordinal())


PROMISES = (
    every_request_is_answered,
    every_backfill_ends_once,
    progress_is_announced_once,
    every_interval_has_its_outcome,
    retries_replace_failed_runs,
    one_active_backfill_of_an_interval,
)
