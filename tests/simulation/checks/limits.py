"""Claims respect the limits, the order of runs, and backfills that may not start runs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.simulation.checks.base import LIVE, Check, Values, changed
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.world import World


class Limits(Check):
    """Invariant 4.

    A lowered limit applies to later claims only, not to runs that are already live.
    """

    name = "limits"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By backfill: runs that had already failed at its last resume.
        self._accepted: dict[str, set[int]] = defaultdict(set)

    def committed(self, tx: Tx) -> None:
        """Check claims and record resumes."""
        for old, new in changed(tx, "backfill"):
            if old and new and old["resumed_at"] != new["resumed_at"]:
                self._accepted[new["id"]] = {r["id"] for r in self._failed(new)}
        for old, new in changed(tx, "run"):
            if old and new and old["state"] == "queued" and new["state"] == "starting":
                self._claimed(new)

    def _claimed(self, run: Values) -> None:
        runs = self.rows("run")
        backfill = self.row("backfill", "id", run["backfill_id"])
        self.require(backfill["state"] == "running", lambda: f"run {run['id']} was claimed, its backfill is {backfill}")
        self._within(runs, "backfill_id", run, backfill["max_active_runs"])
        limit = self.row("pipeline", "no", run["pipeline_no"])["max_active_runs"]
        self._within(runs, "pipeline_no", run, limit)
        mine = [each for each in runs if each["backfill_id"] == backfill["id"]]
        before = [r["position"] for r in mine if r["state"] == "queued" and r["position"] < run["position"]]
        self.require(
            not before, lambda: f"run {run['id']} of position {run['position']} was claimed before those of {before}"
        )
        self.require(self._in_order(mine, backfill), lambda: f"the positions of {backfill['id']} are not in its order")
        if backfill["on_run_failure"] != "continue":
            failed = [r for r in self._failed(backfill) if r["id"] not in self._accepted[backfill["id"]]]
            self.require(not failed, lambda: f"run {run['id']} was claimed though others failed: {failed}")

    def _failed(self, backfill: Values) -> list[Values]:
        return [r for r in self.rows("run") if r["backfill_id"] == backfill["id"] and r["state"] == "failed"]

    def _within(self, runs: list[Values], key: str, run: Values, limit: int) -> None:
        live = [r["id"] for r in runs if r[key] == run[key] and r["state"] in LIVE]
        self.require(len(live) <= limit, lambda: f"{len(live)} live runs with {key} {run[key]}, limit {limit}: {live}")

    def _in_order(self, runs: list[Values], backfill: Values) -> bool:
        in_order = sorted(runs, key=lambda r: r["position"])
        dates = [r["interval_start"] for r in in_order]
        return dates == sorted(dates, reverse=backfill["run_backwards"])
