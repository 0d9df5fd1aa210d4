"""Output staged for a review is published after its approval only, and discarded before it only.

And only onto what it was compared with, unless that was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checks.base import LIVE, Check, Values, current
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from retrofill.protocol.launch import LaunchedRun
    from tests.simulation.world import World

# Any state of its place.
ANY = None


class Reviews(Check):
    """Restates section 7 of DESIGN.md, invariant 17."""

    name = "reviews"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By run, the states of its places that were approved.
        self._approved: dict[int, list[str] | None] = {}

    def committed(self, tx: Tx) -> None:
        """Check the runs that are held, published or discarded, and the backfills whose review begins or ends."""
        for step in tx.steps:
            old, new = step.before, step.after
            if step.table == "backfill_command" and new is not None and new["answer_type"] == "BackfillApproved":
                self._approved_some(new)
            if old is None or new is None:
                continue
            if step.table == "run" and old["state"] != new["state"]:
                self._run(old, new)
            elif step.table == "run" and old["review"] != new["review"]:
                self._put_off(tx, old, new)
            elif step.table == "backfill":
                self._backfill(old, new)

    def published(self, run: LaunchedRun, before: str) -> None:
        """A run replaces what was there ``before``."""
        backfill = self.row("backfill", "id", self.row("run", "id", run.id)["backfill_id"])
        if not backfill["review"]:
            return
        approved = self._approved.get(run.id, [])
        what = f"run {run.id} replaces {before!r}, of which {approved} was approved: {backfill}"
        self.require(approved is ANY or approved == [before], lambda: what)

    def _waits(self, backfill: Values, run: Values) -> bool:
        return bool(backfill["review"] and run["review"] >= backfill["approvals"])

    def _run(self, old: Values, new: Values) -> None:
        backfill = self.row("backfill", "id", new["backfill_id"])
        waits = self._waits(backfill, new)
        if new["state"] == "publishing":
            self.require(not waits, lambda: f"{new} is published before {backfill} was approved")
            seen = not backfill["review"] or new["id"] in self._approved
            self.require(seen, lambda: f"{new} is published though no review has seen it: {backfill}")
        if (old["state"], new["state"]) == ("running", "staged"):
            self.require(backfill["review"], lambda: f"{new} is held though nobody asked for a review: {backfill}")
            self.require(new["staged_at"] is not None, lambda: f"{new} is held since an unknown moment")
        if old["review"] != new["review"]:
            again = (old["state"], new["state"]) == ("publishing", "staged") and waits
            self.require(
                again and new["outputs"]["changed"], lambda: f"{new} is not held for another review: {backfill}"
            )
        if (old["state"], new["state"]) == ("staged", "cancelled"):
            discarded = waits and backfill["state"] == "cancelling"
            self.require(discarded, lambda: f"{new} was discarded in {backfill}")

    def _put_off(self, tx: Tx, old: Values, new: Values) -> None:
        """A staged run waits for the next review, in the transaction that approves others of its backfill."""
        backfill = self.row("backfill", "id", new["backfill_id"])
        now = [
            s for s in tx.steps if s.table == "backfill" and s.before and s.after and s.after["id"] == backfill["id"]
        ]
        approves = any(step.after["approvals"] > step.before["approvals"] for step in now)  # type: ignore[index]
        self.require(
            approves and new["state"] == "staged" and new["review"] == backfill["approvals"],
            lambda: f"{old} is put off to another review: {new} of {backfill}",
        )

    def _approved_some(self, command: Values) -> None:
        """As many runs as the reply says are approved, if it does, and the other staged ones wait."""
        if "runs" not in command["answer"]:
            return
        id, backfill = command["backfill_id"], self.row("backfill", "id", command["backfill_id"])
        staged = [run for run in current(self.rows("run")) if run["backfill_id"] == id and run["state"] == "staged"]
        approved = [run for run in staged if not self._waits(backfill, run)]
        self.require(
            len(approved) == command["answer"]["runs"] > 0,
            lambda: f"{command} approved {len(approved)} of {len(staged)} runs of {backfill}",
        )

    def _backfill(self, old: Values, new: Values) -> None:
        mine = current(run for run in self.rows("run") if run["backfill_id"] == new["id"])
        if (old["approvals"], old["approved_at"]) != (new["approvals"], new["approved_at"]):
            once = old["state"] == "in_review" and new["approvals"] == old["approvals"] + 1
            self.require(once and new["approved_at"] is not None, lambda: f"{old} was approved: {new}")
            for run in mine:
                if run["state"] == "staged" and not self._waits(new, run):
                    self._approved[run["id"]] = ANY if new["forced"] else run["outputs"]["bases"]
        if (old["state"], new["state"]) in (("running", "in_review"), ("paused", "in_review")):
            states = {run["state"] for run in mine}
            staged = [run for run in mine if run["state"] == "staged"]
            waits = staged and all(self._waits(new, run) for run in staged)
            self.require(bool(waits), lambda: f"nothing of {new} is to be reviewed: {states}")
            self.require(not states & (LIVE | {"queued"}), lambda: f"{new} is reviewed before its runs: {states}")
        if (old["state"], new["state"]) == ("in_review", "running") and old["approvals"] == new["approvals"]:
            replaced = [r for r in self.rows("run") if r["backfill_id"] == new["id"] and r["superseded_by"] is not None]
            self.require(bool(replaced), lambda: f"the review of {new} ended without approval or retry")
