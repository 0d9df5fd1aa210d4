"""No interval has two live attempts, and no report of an old attempt takes effect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from retrofill.contract.topics import Topic
from tests.chaos.history import History
from tests.chaos.promises.limits import most_at_once, work_spans

ENDS = {"RunSucceeded": "succeeded", "RunFailed": "failed", "RunCancelled": "cancelled"}
# The text in every report that the tests forge for ended attempts.
FORGED = "forged by a test"


def one_attempt_of_an_interval_at_a_time(history: History) -> Iterator[str]:
    """Drivers' work logs of one interval do not overlap."""
    by_day = defaultdict(list)
    for span in work_spans(history):
        by_day[span["pipeline"], span["day"]].append(span)
    for (pipeline, day), spans in by_day.items():
        if most_at_once(spans) > 1:
            attempts = sorted((str(span["run"]), str(span["attempt"])) for span in spans)
            yield f"{pipeline} {day} had attempts at work together, of {attempts}"


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
    """Each attempt starts at most once, after the previous one was lost."""
    newest: dict[int, int] = defaultdict(lambda: 1)
    started: set[tuple[int, int]] = set()
    for event in history.of(Topic.RUN_EVENTS):
        body = event.body
        run, attempt = body["run_id"], body["attempt"]
        if attempt != newest[run] and body["type"] != "RunCancelled":
            yield f"run {run}: {body['type']} of attempt {attempt} while attempt {newest[run]} was the newest"
        if body["type"] == "RunStarted":
            if (run, attempt) in started:
                yield f"run {run}: attempt {attempt} started twice"
            started.add((run, attempt))
        elif body["type"] == "RunAttemptLost":
            newest[run] = attempt + 1


def ends_were_reported(history: History) -> Iterator[str]:
    """Each success was reported by a driver of that attempt, and no forged report took effect."""
    reported = {
        (e.body["run_id"], e.body["attempt"])
        for e in history.of(Topic.RUN_REPORTS)
        if e.body["type"] == "RunReported" and e.body["state"] == "succeeded"
    }
    for row in history.rows("run"):
        if row["state"] == "succeeded" and (row["id"], row["attempt"]) not in reported:
            yield f"run {row['id']} succeeded in attempt {row['attempt']}, which reported nothing of the kind"
        if FORGED in str(row["error"]):
            yield f"run {row['id']} ended by a report of an old attempt"


PROMISES = (
    one_attempt_of_an_interval_at_a_time,
    every_run_ends_once,
    attempts_follow_one_another,
    ends_were_reported,
)
