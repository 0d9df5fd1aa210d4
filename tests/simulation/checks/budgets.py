"""A used-up budget pauses its backfill once, and a resume needs one that is not used up."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING

from tests.simulation.checks.base import Check, Values, changed, inserted
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.world import World

OUTBOX = "backfill_planner_outbox"


class Budgets(Check):
    """Claims of paused backfills are found by ``Limits``."""

    name = "budgets"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By backfill and its last resume, with which it got its budget.
        self._pauses: Counter[tuple[str, datetime | None]] = Counter()
        # By backfill: when runs failed that were not retried, and when and how many core-seconds were reported.
        self._failed: dict[str, dict[int, float]] = defaultdict(dict)
        self._used: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def committed(self, tx: Tx) -> None:
        """Check resumes, and the pauses that the planner announces."""
        self._note(tx)
        moved = {new["id"]: (old, new) for old, new in changed(tx, "backfill") if old and new}
        for old, new in moved.values():
            if old["state"] == "paused" and new["state"] == "running":
                # What was committed meanwhile cannot have been known.
                used_up = self._used_up(new, tx.began)
                self.require(not used_up, lambda: f"{new} was resumed with a used-up budget")
            if old["state"] == "in_review" and new["state"] == "running":
                # An approval brings no budget: runs that are retried after it are held up again.
                del self._pauses[new["id"], new["resumed_at"]]
        for event in inserted(tx, OUTBOX):
            if b'"cause":"budget"' in (event["value"] or b""):
                self._paused(json.loads(event["value"])["backfill_id"], moved)

    def _paused(self, id: str, moved: dict[str, tuple[Values, Values]]) -> None:
        old, new = moved.get(id, (None, self.row("backfill", "id", id)))
        both = (old and old["state"], new["state"])
        self.require(both == ("running", "paused"), lambda: f"{new} is said to be paused by its budget: {both}")
        self.require(self._used_up(new, inf), lambda: f"{new} was paused though its budget is not used up")
        self._pauses[id, new["resumed_at"]] += 1
        self.require(self._pauses[id, new["resumed_at"]] == 1, lambda: f"{new} was paused twice by one budget")

    def _note(self, tx: Tx) -> None:
        now = self.world.scheduler.now
        for old, new in changed(tx, "run"):
            if new and new["state"] == "failed" and (old is None or old["state"] != "failed"):
                self._failed[new["backfill_id"]][new["id"]] = now
            if new and new["superseded_by"] is not None:
                self._failed[new["backfill_id"]].pop(new["id"], None)
        for old, new in changed(tx, "attempt"):
            if new and new["core_seconds"] is not None and (old is None or old["core_seconds"] is None):
                self._used[new["backfill_id"]].append((now, new["core_seconds"]))

    def _used_up(self, backfill: Values, before: float) -> bool:
        """Whether a limit was reached by what was committed before this moment."""
        failed, hours = backfill["budget_failed_runs"], backfill["budget_core_hours"]
        runs = sum(moment < before for moment in self._failed[backfill["id"]].values())
        used = sum(seconds for moment, seconds in self._used[backfill["id"]] if moment < before)
        return (failed is not None and runs >= failed) or (hours is not None and used >= hours * 3600)
