"""Claims respect the limits, the order of runs, and backfills that may not start runs."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from tests.simulation.checks.base import Check, Values, changed, current
from tests.simulation.memory.rows import Tx

if TYPE_CHECKING:
    from tests.simulation.world import World


class Limits(Check):
    """Invariant 4.

    A lowered limit applies to later claims only, not to attempts that are already live.
    """

    name = "limits"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By backfill: runs that had already failed at its last resume.
        self._accepted: dict[str, set[int]] = defaultdict(set)

    def committed(self, tx: Tx) -> None:
        """Check claims, and record what resumes and changes accept."""
        for old, new in changed(tx, "backfill"):
            accepts = ("resumed_at", "on_run_failure")
            if (
                old
                and new
                and (any(old[name] != new[name] for name in accepts) or new["failed_before"] > old["failed_before"])
            ):
                self._accepted[new["id"]] = {r["id"] for r in self._failed(new)}
        for old, new in changed(tx, "attempt"):
            if old is None and new is not None:
                self._claimed(new)

    def _claimed(self, attempt: Values) -> None:
        backfill = self.row("backfill", "id", attempt["backfill_id"])
        self._within("backfill_id", attempt, backfill["max_active_runs"])
        self._within("pipeline_no", attempt, self.row("pipeline", "no", attempt["pipeline_no"])["max_active_runs"])
        if attempt["mode"] == "publish":
            return
        self.require(backfill["state"] == "running", lambda: f"{attempt} was claimed, its backfill is {backfill}")
        runs = current(each for each in self.rows("run") if each["backfill_id"] == backfill["id"])
        self.require(self._in_order(runs, backfill), lambda: f"the positions of {backfill['id']} are not in its order")
        last = attempt["position"] + attempt["runs"] - 1
        self.require(not (before := self._before(attempt, runs)), lambda: f"{attempt} was claimed before {before}")
        self._adjacent(attempt, [r for r in runs if attempt["position"] <= r["position"] <= last])
        if backfill["on_run_failure"] != "continue":
            failed = [r for r in self._failed(backfill) if r["id"] not in self._accepted[backfill["id"]]]
            self.require(not failed, lambda: f"{attempt} was claimed though runs failed: {failed}")

    def _before(self, attempt: Values, runs: list[Values]) -> list[int]:
        """Positions of queued runs that should have been claimed first: of suspects, those lost before."""
        last = next(r for r in runs if r["position"] == attempt["position"] + attempt["runs"] - 1)
        queued = [r for r in runs if r["state"] == "queued" and (r["lost_at"] is None) == (last["lost_at"] is None)]
        return [r["position"] for r in queued if (r["lost_at"], r["position"]) < (last["lost_at"], last["position"])]

    def _adjacent(self, attempt: Values, runs: list[Values]) -> None:
        """A batch never spans a gap, and is not larger than the pipeline allows."""
        backfill = self.row("backfill", "id", attempt["backfill_id"])
        definition = backfill["definition"]
        size = min(definition.get("batch_size", 1), backfill["batch_size"] or inf, self._proven(attempt, definition))
        in_order = sorted(runs, key=lambda r: r["interval_start"])
        gaps = [one["id"] for one, other in pairwise(in_order) if one["interval_end"] != other["interval_start"]]
        limits = [r["range_limit"] for r in runs if r["range_limit"] is not None]
        if attempt["mode"] == "each" and set(limits) == {1} and len(limits) == len(runs):
            limits = [12]  # what is left of a small range that failed
        whole = 0 < len(runs) == attempt["runs"] <= min([size, *limits])
        self.require(whole and not gaps, lambda: f"{attempt} has gaps after {gaps} or a wrong number of runs: {runs}")

    def _proven(self, attempt: Values, definition: Values) -> float:
        """A chosen size is at most four times one that succeeded before, and 1 at first."""
        if definition.get("batch_target_seconds") is None:
            return inf
        sizes = [
            each["runs"]
            for each in self.rows("attempt")
            if each["pipeline_no"] == attempt["pipeline_no"] and each["outcome"] == "done" and each["mode"] != "publish"
            if each["mode"] == definition["batch_mode"] or each["runs"] == 1
            if self._all_succeeded(each)
        ]
        return 4 * max(sizes) if sizes else 1

    def _all_succeeded(self, attempt: Values) -> bool:
        def has_succeeded(run: Values) -> bool:
            held = run["accepted_attempt"] == attempt["id"] and run["staged_at"] is not None
            return bool(held or (run["attempt_id"] == attempt["id"] and run["state"] == "succeeded"))

        return bool(sum(map(has_succeeded, self.rows("run"))) == attempt["runs"])

    def _failed(self, backfill: Values) -> list[Values]:
        failed = (r for r in self.rows("run") if r["backfill_id"] == backfill["id"] and r["state"] == "failed")
        return current(failed)

    def _within(self, key: str, attempt: Values, limit: int) -> None:
        live = [a["id"] for a in self.rows("attempt") if a[key] == attempt[key] and a["state"] != "ended"]
        self.require(
            len(live) <= limit, lambda: f"{len(live)} live attempts with {key} {attempt[key]}, limit {limit}: {live}"
        )

    def _in_order(self, runs: list[Values], backfill: Values) -> bool:
        in_order = sorted(runs, key=lambda r: r["position"])
        dates = [r["interval_start"] for r in in_order]
        return dates == sorted(dates, reverse=backfill["run_backwards"])
