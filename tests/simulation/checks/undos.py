"""An undo restores what the undone runs published last, and nothing else; then these runs do not count any more."""

from __future__ import annotations

from tests.simulation.checks.base import ENDED, Check, Values, changed, current, inserted
from tests.simulation.memory.rows import Tx


class Undos(Check):
    """Restates docs/decisions/undo.md."""

    name = "undos"

    def committed(self, tx: Tx) -> None:
        """Check the undos that were planned, and their runs that succeeded."""
        new = {row["id"]: row for row in inserted(tx, "backfill") if row["undoes"] is not None}
        for undo in new.values():
            undone = self.row("backfill", "id", undo["undoes"])
            fit = undone["state"] in ENDED["backfill"] and undone["undoes"] is None
            self.require(fit, lambda: f"{undo} undoes {undone}")
        for _, interval in changed(tx, "backfill_interval"):
            if interval is not None and interval["backfill_id"] in new:
                self._decided(new[interval["backfill_id"]], interval)
        for before, run in changed(tx, "run"):
            if before is None or run is None:
                continue
            if before["state"] != run["state"] == "succeeded":
                self._succeeded(run)
            if before["undone_by"] != run["undone_by"]:
                self._undone(run)

    def _decided(self, undo: Values, interval: Values) -> None:
        """An interval gets a run if its latest publication is that of the undone backfill."""
        same = [run for run in self.rows("run") if run["interval_start"] == interval["interval_start"]]
        mine = next(run for run in current(same) if run["backfill_id"] == undo["undoes"])
        published = [
            run
            for run in same
            if run["pipeline_no"] == mine["pipeline_no"]
            and run["state"] == "succeeded"
            and run["published"] is not None
            and run["restores"] is None
            and run["undone_by"] is None
        ]
        last = max(published, key=lambda run: run["id"], default=None)
        gets_one = interval["reason"] is None
        self.require(
            gets_one == (last is not None and last["id"] == mine["id"]),
            lambda: f"{interval} of {undo}: {mine}, of {published}",
        )
        undoing = [run["restores"] for run in same if run["backfill_id"] == undo["id"]]
        self.require(undoing == [mine["id"]] * gets_one, lambda: f"{undo} restores {undoing}, not {mine}")

    def _succeeded(self, run: Values) -> None:
        if run["restores"] is not None:
            undone = self.row("run", "id", run["restores"])
            self.require(undone["undone_by"] == run["id"], lambda: f"{run} succeeded, but {undone} still counts")

    def _undone(self, run: Values) -> None:
        undoing = self.row("run", "id", run["undone_by"])
        fits = undoing["state"] == "succeeded" and undoing["restores"] == run["id"]
        self.require(fits, lambda: f"{run} does not count any more, but {undoing} has not undone it")
