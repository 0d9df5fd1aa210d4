"""Each refusal or skip has the reason that the request and the earlier runs imply."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History, Row, Wish
from tests.chaos.work import label

# The start date of all pipelines of the workload.
START = datetime(2000, 1, 1, tzinfo=UTC)
# A planner may still see a backfill as active while its end is being committed.
COMMITTING = timedelta(seconds=10)
Place = tuple[str, str]


@dataclass
class Earlier:
    """The backfills that include one interval, in the order of planning, and their runs of it."""

    planned_at: list[datetime] = field(default_factory=list)
    runs: list[Row | None] = field(default_factory=list)

    def before(self, moment: datetime) -> list[Row]:
        """Runs of backfills planned before ``moment``."""
        return [run for run in self.runs[: bisect_right(self.planned_at, moment)] if run is not None]


def skips_are_due(history: History) -> Iterator[str]:
    """Each interval has a run, or the skip reason that its dates and the earlier runs imply."""
    earlier = _earlier(history)
    backfills = {row["id"]: row for row in history.rows("backfill")}
    for row in history.rows("backfill_interval"):
        backfill = backfills.get(row["backfill_id"])
        wish = history.wishes.get(row["backfill_id"])
        if backfill is None or wish is None:
            continue
        at = backfill["requested_at"]
        expected = _reason(wish, row["interval_start"], at, earlier[wish.pipeline, label(row["interval_start"])], at)
        if row["reason"] != expected:
            yield f"{wish.id}: {label(row['interval_start'])} was skipped as {row['reason']} instead of {expected}"


def refusals_are_due(history: History) -> Iterator[str]:
    """Each ``BackfillRejected`` gives a reason that was true at that time."""
    earlier = _earlier(history)
    backfills = {row["id"]: row for row in history.rows("backfill")}
    decided = {row["id"]: row["decided_at"] for row in history.rows("backfill_request")}
    for event in history.of(Topic.BACKFILL_EVENTS):
        wish = history.wishes.get(event.key)
        if event.body["type"] != "BackfillRejected" or wish is None or wish.id not in decided:
            continue
        why = _undue(history, wish, event.body, decided[wish.id], backfills, earlier)
        if why is not None:
            yield f"{wish.id} was refused ({event.body.get('reason')}) though {why}"


def _undue(
    history: History,
    wish: Wish,
    body: Row,
    at: datetime,
    backfills: dict[str, Row],
    earlier: dict[Place, Earlier],
) -> str | None:
    """Why the refusal was wrong, or ``None``."""
    match body.get("reason"):
        case "unknown_pipeline":
            return "there is such a pipeline" if wish.pipeline in history.limits else None
        case "overlap":
            winner = backfills.get(body.get("conflicting_backfill_id", "?"))
            return "it names no backfill" if winner is None else _no_overlap(wish, winner, at, history.clock_slack)
        case "nothing_to_run":
            for start in wish.starts:
                if _reason(wish, start, at, earlier[wish.pipeline, label(start)], at + COMMITTING) is None:
                    return f"{label(start)} could have been run"
            return None
        case other:
            return f"nothing of the workload is {other}"


def _no_overlap(wish: Wish, winner: Row, at: datetime, slack: timedelta) -> str | None:
    if winner["pipeline"] != wish.pipeline:
        return f"{winner['id']} is of another pipeline"
    if not (winner["covers"].lower < wish.starts[-1] + wish.step and wish.starts[0] < winner["covers"].upper):
        return f"{winner['id']} has none of its days"
    ended = winner["ended_at"] is not None and winner["ended_at"] + COMMITTING + slack < at
    if ended or winner["requested_at"] > at + slack:
        return f"{winner['id']} was not active at {at}"
    return None


def _reason(wish: Wish, start: datetime, now: datetime, earlier: Earlier, seen: datetime) -> str | None:
    """Why a plan at ``now`` must skip this interval, or ``None``.

    Runs count as finished if they finished by ``seen``.
    """
    if start < START:
        return "outside the pipeline's dates"
    if start + wish.step > now:
        return "not over yet"
    runs = [run for run in earlier.before(now) if run["backfill_id"] != wish.id]
    if any(run["finished_at"] is None or run["finished_at"] > seen for run in runs):
        return "in flight"
    finished = [run["state"] for run in runs if run["state"] in ("succeeded", "failed")]
    done = bool(finished) and (wish.reprocess == "none" or (wish.reprocess == "failed" and finished[-1] == "succeeded"))
    return "already exists" if done else None


def _earlier(history: History) -> dict[Place, Earlier]:
    """By (pipeline, day)."""
    runs = {row["id"]: row for row in history.rows("run")}
    backfills = {row["id"]: row for row in history.rows("backfill")}
    intervals = [
        (backfills[row["backfill_id"]], row)
        for row in history.rows("backfill_interval")
        if row["backfill_id"] in backfills
    ]
    places: dict[Place, Earlier] = defaultdict(Earlier)
    for backfill, row in sorted(intervals, key=lambda pair: pair[0]["requested_at"]):
        place = places[backfill["pipeline"], label(row["interval_start"])]
        place.planned_at.append(backfill["requested_at"])
        place.runs.append(runs.get(row["run_id"]))
    return places


PROMISES = (skips_are_due, refusals_are_due)
