"""Live attempts never exceed a limit: by Postgres, by the events, and by the drivers' work logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History
from tests.support.sampling import most_live


def limits_of(history: History) -> dict[str, int]:
    """Limits by backfill id, and by ``pipeline:`` plus name."""
    limits = {row["id"]: row["max_active_runs"] for row in history.rows("backfill")}
    return limits | {f"pipeline:{name}": limit for name, limit in history.limits.items()}


def limits_hold_in_the_rows(history: History) -> Iterator[str]:
    """By the samples taken in Postgres."""
    limits = limits_of(history)
    for whose, most in history.sampled.items():
        if most > limits.get(whose, most):
            yield f"{whose} had {most} live attempts, its limit is {limits[whose]}"


def limits_hold_in_the_events(history: History) -> Iterator[str]:
    """By the attempts at work in ``run-events``: per backfill in topic order, per pipeline by
    database time.
    """
    limits = limits_of(history)
    for id, most in most_live(history.of(Topic.RUN_EVENTS)).items():
        if most > limits.get(id, most):
            yield f"{id} had {most} attempts at work, its limit is {limits[id]}"
    # From the begin of an attempt's first run to the end of the last one.
    spans: dict[tuple[str, int], dict[str, object]] = {}
    at_work: dict[int, int] = {}
    for event in history.of(Topic.RUN_EVENTS):
        body = event.body
        run, at = body["run_id"], datetime.fromisoformat(body["at"])
        if body["type"] == "RunStarted":
            at_work[run] = body["attempt_id"]
            spans.setdefault((body["pipeline"], body["attempt_id"]), {"began": at, "ended": at})
        elif run in at_work and body["type"] != "TaskStateChanged":
            spans[body["pipeline"], at_work.pop(run)]["ended"] = at
    by_pipeline = defaultdict(list)
    for (pipeline, _), span in spans.items():
        by_pipeline[pipeline].append(span)
    yield from _too_many(history, by_pipeline, touching=False)


def limits_hold_at_work(history: History) -> Iterator[str]:
    """By the drivers' work logs."""
    limits = limits_of(history)
    of_backfill, of_pipeline = defaultdict(list), defaultdict(list)
    for span in work_spans(history):
        of_backfill[span["backfill"]].append(span)
        of_pipeline[span["pipeline"]].append(span)
    for id, spans in of_backfill.items():
        if (most := most_at_once(spans)) > limits.get(str(id), most):
            yield f"{most} drivers were at work for {id}, its limit is {limits[str(id)]}"
    yield from _too_many(history, of_pipeline, touching=True)


def one_suspect_at_a_time(history: History) -> Iterator[str]:
    """A run whose driver was lost is retried alone, or in a part of its lost range, and of all of them
    one attempt at a time on a server.
    """
    spans = defaultdict(list)
    for row in history.rows("attempt"):
        if row["suspect_server"] is not None:
            span = {"began": row["claimed_at"] + history.clock_slack, "ended": row["ended_at"]}
            spans[row["suspect_server"]].append(span)
            if row["runs"] > 1 and row["mode"] != "range":
                yield f"attempt {row['id']} retries {row['runs']} runs together"
    for server, of_server in spans.items():
        if (most := most_at_once((span for span in of_server if span["began"] <= span["ended"]), touching=False)) > 1:
            yield f"{most} attempts retried suspects on {server} at once"


def _too_many(history: History, by_pipeline: dict[str, list[dict[str, Any]]], *, touching: bool) -> Iterator[str]:
    for name, spans in by_pipeline.items():
        if (most := most_at_once(spans, touching=touching)) > history.limits.get(name, most):
            yield f"{most} attempts of {name} at once, its limit is {history.limits[name]}"


def most_at_once(spans: Iterable[Mapping[str, Any]], *, touching: bool = True) -> int:
    """The largest number of spans that overlap at one moment.

    With ``touching``, spans include both ends, as work was logged at both. Otherwise a span that
    ends as another begins does not overlap it, as when a slot is passed on. A span of zero length
    always counts.
    """
    moments = []
    for span in spans:
        first, last = span["began"], span["ended"]
        # At equal times: first spans that end exclusively, then those that begin, then those that
        # end inclusively.
        moments += [(first, 1, 1), (last, 2 if touching or first == last else 0, -1)]
    now = most = 0
    for _, _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def work_spans(history: History) -> Iterable[dict[str, Any]]:
    """One span per execution of a run, from its first log entry to its last."""
    spans: dict[tuple[int, int, int], dict[str, Any]] = {}
    for note in history.notes:
        execution = note["run"], note["attempt"], note["process"]
        span = spans.setdefault(execution, {**note, "began": note["at"], "ended": note["at"]})
        span["ended"] = max(span["ended"], note["at"])
    return spans.values()


PROMISES = (limits_hold_in_the_rows, limits_hold_in_the_events, limits_hold_at_work, one_suspect_at_a_time)
