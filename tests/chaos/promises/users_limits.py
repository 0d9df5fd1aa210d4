"""Limits that users set: a run that hangs times out, and a budget pauses its backfill."""

from __future__ import annotations

from collections.abc import Iterator

from retrofill_core.contract.topics import Topic
from tests.chaos.history import History
from tests.chaos.work import label


def only_what_hangs_times_out(history: History) -> Iterator[str]:
    """A run of a day that hangs failed for that, and no other run did."""
    for run in history.rows("run"):
        wish = history.wishes.get(run["backfill_id"])
        hangs = wish is not None and label(run["interval_start"]) in wish.hanging
        kind = (run["error"] or {}).get("type")
        if run["state"] == "failed" and hangs != (kind == "RunTimedOut"):
            yield f"run {run['id']} {'hangs' if hangs else 'does not hang'} and failed by {kind}"


def budgets_pause(history: History) -> Iterator[str]:
    """A backfill pauses once for each budget that its failed runs used up, and not before."""
    for wish in history.wishes.values():
        told = [
            event
            for event in history.of(Topic.BACKFILL_EVENTS)
            if (event.key, event.body["type"], event.body.get("cause")) == (wish.id, "BackfillPaused", "budget")
        ]
        if len(told) != len(wish.budgets):
            yield f"{wish.id} paused {len(told)} times for its budgets {wish.budgets}"
        paused = [
            each["at"]
            for each in history.changes
            if (each["entity"], each["id"], each["to"]) == ("backfill", wish.id, "paused")
        ]
        failed = [
            run["finished_at"]
            for run in history.rows("run")
            if (run["backfill_id"], run["state"]) == (wish.id, "failed")
        ]
        for budget, at in zip(wish.budgets, paused, strict=False):
            if (count := sum(each <= at + history.clock_slack for each in failed)) < budget:
                yield f"{wish.id} paused for a budget of {budget} when {count} of its runs had failed"


PROMISES = (only_what_hangs_times_out, budgets_pause)
