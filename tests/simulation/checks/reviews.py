"""What a backfill stages for a review is published after its approval only, and discarded before it only."""

from __future__ import annotations

from tests.simulation.checks.base import LIVE, Check, Values, current
from tests.simulation.memory.rows import Tx


class Reviews(Check):
    """Restates section 11 of DESIGN.md."""

    name = "reviews"

    def committed(self, tx: Tx) -> None:
        """Check the runs that are held, published or discarded, and the backfills whose review begins or ends."""
        for step in tx.steps:
            old, new = step.before, step.after
            if old is None or new is None:
                continue
            if step.table == "run" and old["state"] != new["state"]:
                self._run(old, new)
            elif step.table == "backfill":
                self._backfill(old, new)

    def _run(self, old: Values, new: Values) -> None:
        backfill = self.row("backfill", "id", new["backfill_id"])
        waits = backfill["review"] and backfill["approved_at"] is None
        if new["state"] == "publishing":
            self.require(not waits, lambda: f"{new} is published before {backfill} was approved")
        if (old["state"], new["state"]) == ("running", "staged"):
            self.require(backfill["review"], lambda: f"{new} is held though nobody asked for a review: {backfill}")
            self.require(new["staged_at"] is not None, lambda: f"{new} is held since an unknown moment")
        if (old["state"], new["state"]) == ("staged", "cancelled"):
            discarded = waits and backfill["state"] == "cancelling"
            self.require(discarded, lambda: f"{new} was discarded in {backfill}")

    def _backfill(self, old: Values, new: Values) -> None:
        if old["approved_at"] != new["approved_at"]:
            once = old["approved_at"] is None and old["state"] == "in_review"
            self.require(once, lambda: f"{old} was approved: {new}")
        if (old["state"], new["state"]) in (("running", "in_review"), ("paused", "in_review")):
            mine = current(run for run in self.rows("run") if run["backfill_id"] == new["id"])
            states = {run["state"] for run in mine}
            waits = new["review"] and new["approved_at"] is None
            self.require(bool(waits and "staged" in states), lambda: f"nothing of {new} is to be reviewed: {states}")
            self.require(not states & (LIVE | {"queued"}), lambda: f"{new} is reviewed before its runs: {states}")
        if (old["state"], new["state"]) == ("in_review", "running") and new["approved_at"] is None:
            replaced = [r for r in self.rows("run") if r["backfill_id"] == new["id"] and r["superseded_by"] is not None]
            self.require(bool(replaced), lambda: f"the review of {new} ended without approval or retry")
