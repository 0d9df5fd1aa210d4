"""A backfill ends once, with its last run, in the state that its runs and its cancel imply."""

from __future__ import annotations

from tests.simulation.checks.base import ENDED, REST, Check, Values, changed, current
from tests.simulation.memory.rows import Tx


class Endings(Check):
    """Invariant 5."""

    name = "endings"

    def committed(self, tx: Tx) -> None:
        """Check every backfill that ended."""
        for _, new in changed(tx, "backfill"):
            if new is not None and new["state"] in ENDED["backfill"]:
                self._ended(new)

    def _ended(self, backfill: Values) -> None:
        mine = current(run for run in self.rows("run") if run["backfill_id"] == backfill["id"])
        unfinished = [run for run in mine if run["state"] not in ENDED["run"]]
        self.require(not unfinished, lambda: f"backfill {backfill['id']} ended before its runs: {unfinished}")
        # Before the whole backfill was cancelled, only users' requests for single runs did so.
        failed = any(run["state"] in ("failed", "cancelled") for run in mine)
        cause = backfill["cancel_cause"]
        expected = "cancelled" if cause == "user" else "failed" if cause or failed else "succeeded"
        self.require(backfill["state"] == expected, lambda: f"{backfill} ought to be {expected}")

    def at_the_end(self) -> None:
        """Everything except paused and unreviewed backfills has ended, and each run as its user code implies."""
        backfills = {row["id"]: row for row in self.rows("backfill")}
        for backfill in backfills.values():
            self.require(backfill["state"] in ENDED["backfill"] | REST, lambda: f"not ended: {backfill}")
        for run in self.rows("run"):
            backfill = backfills[run["backfill_id"]]
            if backfill["state"] not in REST:
                self._outcome(backfill, run)

    def _outcome(self, backfill: Values, run: Values) -> None:
        if run["restores"] is not None and run["state"] != "cancelled":
            why = (run["error"] or {}).get("type")
            self.require(why in (None, "DriverLost", "PublishedAgain"), lambda: f"{run} failed, which no undo does")
            return
        interval = (backfill["pipeline"], run["interval_start"])
        fails, fixed = interval in self.world.failing, interval in self.world.fixed
        hangs = interval in self.world.hanging
        if run["state"] == "succeeded":
            does = (fixed or not fails) and not hangs
            self.require(does, lambda: f"run {run} succeeded though its code does not")
        elif run["state"] == "failed" and run["error"]["type"] not in ("DriverLost", "RunTimedOut", "ReportRefused"):
            fails = hangs if run["error"]["type"] == "TaskTimedOut" else fails
            fails = fails or (run["error"]["type"] == "TableRefuses" and interval in self.world.refusing)
            self.require(fails, lambda: f"run {run} failed though its code does not")
        elif run["state"] == "cancelled":
            asked = any(row["run_id"] == run["id"] for row in self.rows("run_cancel"))
            self.require(
                backfill["cancel_cause"] is not None or asked,
                lambda: f"run {run} is cancelled, its backfill is {backfill}",
            )
