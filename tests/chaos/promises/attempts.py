"""No interval has two attempts at work, and no report of another attempt takes effect."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from retrofill.sdk.names import DEFAULT_POOL
from retrofill_core.contract.topics import Topic
from tests.chaos.history import History
from tests.chaos.promises.limits import most_at_once, work_spans

ENDS = {"RunSucceeded": "succeeded", "RunFailed": "failed", "RunCancelled": "cancelled"}
# What ends an execution of a run, or its time limit.
LEAVES = (*ENDS, "RunAttemptLost", "RunSplit", "RunPublishing")
# How much longer than its limit a run may be executed: the services may be away for a while.
LATE_SECONDS = 300.0
# A range of at most this many that failed is tried again one by one.
ONE_BY_ONE = 12
# The text in every report that the tests forge for attempts that are over or have other runs.
FORGED = "forged by a test"


def one_attempt_of_an_interval_at_a_time(history: History) -> Iterator[str]:
    """Drivers' work logs of one interval do not overlap."""
    by_day = defaultdict(list)
    for span in work_spans(history):
        for day in span["days"]:
            by_day[span["pipeline"], day].append(span)
    for (pipeline, day), spans in by_day.items():
        if most_at_once(spans) > 1:
            attempts = sorted((str(span["run"]), str(span["attempt"])) for span in spans)
            yield f"{pipeline} {day} had attempts at work together, of {attempts}"


def each_execution_has_its_number(history: History) -> Iterator[str]:
    """No two executions of a run saw the same ``run.attempt``: user code may fence with it."""
    executions = Counter((span["run"], span["attempt"]) for span in work_spans(history))
    for (run, attempt), count in executions.items():
        if count > 1:
            yield f"run {run} was executed {count} times as attempt {attempt}"


def attempts_are_in_their_pools(history: History) -> Iterator[str]:
    """Each attempt was given to a host of its backfill's pool. Rows of hosts long dead are deleted."""
    pools = {row["id"]: row["definition"].get("pool", DEFAULT_POOL) for row in history.rows("backfill")}
    hosts = {row["id"]: row["pool"] for row in history.rows("host")}
    for row in history.rows("attempt"):
        pool, there = pools.get(row["backfill_id"]), hosts.get(row["host_id"])
        if pool is not None and there not in (None, pool):
            yield f"attempt {row['id']} of pool {pool} was given to a host of pool {there}"


def every_run_ends_once(history: History) -> Iterator[str]:
    """Each run has one end event, matching the row's state and attempt, and no events after it."""
    ended: dict[int, tuple[str, int]] = {}
    for event in history.of(Topic.RUN_EVENTS):
        body = event.body
        run = body["run_id"]
        if run in ended:
            yield f"run {run} ended {ended[run]} and then came {body['type']} of attempt {body['attempt']}"
        if body["type"] in ENDS:
            ended[run] = (ENDS[body["type"]], body["attempt"])
    for row in history.rows("run"):
        if ended.get(row["id"]) != (row["state"], row["attempt"]):
            yield f"run {row['id']} is {row['state']} in attempt {row['attempt']}, its end was {ended.get(row['id'])}"


def attempts_follow_one_another(history: History) -> Iterator[str]:
    """A run begins once in each attempt, and again only after the one before was lost.

    Its row says how often it began.
    """
    begun: Counter[int] = Counter()
    at_work: set[int] = set()
    started: set[tuple[int, int]] = set()
    for event in history.of(Topic.RUN_EVENTS):
        body = event.body
        run, kind = body["run_id"], body["type"]
        if kind == "RunStarted":
            begun[run] += 1
            if run in at_work or (run, body["attempt_id"]) in started:
                yield f"run {run} started again in attempt {body['attempt_id']}, which had not ended"
            started.add((run, body["attempt_id"]))
            at_work.add(run)
        elif kind in ("RunAttemptLost", "RunSplit"):
            at_work.discard(run)
        if body["attempt"] != begun[run]:
            yield f"run {run}: {kind} of attempt {body['attempt']} after it had begun {begun[run]} times"
    for row in history.rows("run"):
        if row["attempt"] != begun[row["id"]]:
            yield f"run {row['id']} began {begun[row['id']]} times, its row says {row['attempt']}"


def ranges_are_split(history: History) -> Iterator[str]:
    """The runs of a range that failed or was lost are tried again in at most half its size, or one by one."""
    attempts = {row["id"]: row for row in history.rows("attempt")}
    now: dict[int, dict[str, Any]] = {}
    limit: dict[int, int] = {}
    for event in history.of(Topic.RUN_EVENTS):
        body = event.body
        run = body["run_id"]
        if body["type"] == "RunStarted":
            now[run] = attempts.get(body["attempt_id"], {"mode": "unknown", "runs": 0})
            size = now[run]["runs"] if now[run]["mode"] == "range" else 1
            if size > limit.get(run, size):
                yield f"run {run} is one of {size} in attempt {body['attempt_id']}, at most {limit[run]} are left"
        elif body["type"] == "RunSplit":
            mode, size = now[run]["mode"], now[run]["runs"]
            limit[run] = body["size"]
            if mode != "range" or limit[run] not in (1, size // 2) or (limit[run] == 1 and size > ONE_BY_ONE):
                yield f"run {run} is split to {limit[run]} after an attempt of {size}, mode {mode}"


def time_limits_hold(history: History) -> Iterator[str]:
    """A run times out after its limit, not before, and none is executed for much longer."""
    limits = {row["id"]: row["definition"].get("run_timeout_seconds") for row in history.rows("backfill")}
    attempts = {row["id"]: row for row in history.rows("attempt")}
    began: dict[int, tuple[datetime, int]] = {}
    for event in history.of(Topic.RUN_EVENTS):
        body = event.body
        run, now = body["run_id"], datetime.fromisoformat(body["at"])
        if body["type"] == "RunStarted":
            began[run] = (now, body["attempt_id"])
            continue
        timed_out = (body.get("error") or {}).get("type") == "RunTimedOut"
        if body["type"] not in LEAVES or run not in began:
            if timed_out:
                yield f"run {run} timed out while it was not executed"
            continue
        at, attempt_id = began.pop(run)
        limit, attempt = limits.get(event.key), attempts.get(attempt_id, {"mode": "each"})
        if limit is not None and attempt["mode"] == "range":
            limit *= attempt["runs"]
        took = (now - at).total_seconds()
        if timed_out and (limit is None or took < limit):
            yield f"run {run} timed out after {took} s, its limit is {limit}"
        if limit is not None and took > limit + LATE_SECONDS:
            yield f"run {run} was executed for {took} s, its limit is {limit}"


def ends_were_reported(history: History) -> Iterator[str]:
    """Each success was reported in the run's last attempt, the output was staged in the one that was
    accepted, and no forged report took effect.
    """
    reports = [event.body for event in history.of(Topic.RUN_REPORTS)]
    said = {
        (body["run_id"], body["attempt_id"], body["attempt"], body.get("state", body["type"]))
        for body in reports
        if body["type"] in ("RunReported", "RunStaged")
    }
    for row in history.rows("run"):
        id, number = row["id"], row["attempt"]
        if row["state"] == "succeeded" and (id, row["attempt_id"], number, "succeeded") not in said:
            yield f"run {id} succeeded in attempt {row['attempt_id']}, which reported nothing of the kind"
        accepted = row["accepted_attempt"]
        if accepted is not None and (id, accepted, number, "RunStaged") not in said:
            yield f"run {id} had output of attempt {accepted} accepted, which staged none"
        if FORGED in str((row["error"], row["losses"])):
            yield f"run {id} ended by a report of an attempt that is not its own"
    for row in history.rows("attempt"):
        if FORGED in str(row["error"]):
            yield f"attempt {row['id']} ended by a report after its end"


PROMISES = (
    one_attempt_of_an_interval_at_a_time,
    each_execution_has_its_number,
    attempts_are_in_their_pools,
    every_run_ends_once,
    attempts_follow_one_another,
    ranges_are_split,
    time_limits_hold,
    ends_were_reported,
)
