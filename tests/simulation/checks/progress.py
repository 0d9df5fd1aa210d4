"""Announced progress is that of the rows, numbered without gaps, and not too frequent."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.checks.base import Check, changed
from tests.simulation.checks.budgets import OUTBOX
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.world import World

# By the scheduler's time: the database's clock may be set.
APART_SECONDS = 5.0
ENDS = ("earliest_end", "estimated_end", "latest_end")


class Progress(Check):
    """At most one every five seconds, and none if nothing changed."""

    name = "progress"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[str, tuple[float, dict[str, Any]]] = {}

    def committed(self, tx: Tx) -> None:
        """Compare with the last one, and with the rows."""
        for old, new in changed(tx, OUTBOX):
            if old is None and new is not None and b'"BackfillProgress"' in (new["value"] or b""):
                self._announced(tx.who, json.loads(new["value"]))

    def _announced(self, who: str, event: dict[str, Any]) -> None:
        id, now = event["backfill_id"], self.world.scheduler.now
        before, last = self._last.get(id, (now - APART_SECONDS, {"sequence": 0, "runs_by_state": {}}))
        self._last[id] = (now, event)
        self.require(event["sequence"] == last["sequence"] + 1, lambda: f"{event} follows {last}")
        self.require(event["runs_by_state"] != last["runs_by_state"], lambda: f"{event} says nothing new")
        # A planner counts by its own clock, which may have been moved meanwhile.
        moved = any(each.name == who and each.process.jumped_at >= before for each in self.world.instances)
        self.require(moved or now - before >= APART_SECONDS, lambda: f"{event} came {now - before} s after {last}")
        self.require(sum(event["runs_by_state"].values()) == event["runs"], lambda: f"{event} does not add up")
        counts = Counter(run["state"] for run in self.rows("run") if run["backfill_id"] == id)
        ended = {state: number for state, number in event["runs_by_state"].items() if state in ("succeeded", "failed")}
        # The others may have changed since they were counted.
        self.require(
            all(number <= counts[state] for state, number in ended.items()), lambda: f"{event} is not {counts}"
        )
        ends = [datetime.fromisoformat(event[name]) for name in ENDS if name in event]
        self.require(ends == sorted(ends) and len(ends) in (0, 3), lambda: f"{event} has a wrong range")
