"""An interval gets a run unless succeeded runs cover it whole, of whatever schedule they were."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from tests.simulation.checks.base import Check, Values, changed, inserted
from tests.simulation.memory.rows import Tx

# The schedules of a scenario have no shorter intervals.
STEP = timedelta(hours=12)


class Coverage(Check):
    """What is skipped because it already exists, and nothing else, is done."""

    name = "coverage"

    def committed(self, tx: Tx) -> None:
        new = {row["id"]: row for row in inserted(tx, "backfill") if row["undoes"] is None}
        for _, interval in changed(tx, "backfill_interval"):
            if interval is not None and interval["backfill_id"] in new:
                self._decided(new[interval["backfill_id"]], interval)

    def _decided(self, backfill: Values, interval: Values) -> None:
        finished = [
            run
            for run in self.rows("run")
            if run["pipeline_no"] == backfill["pipeline_no"]
            and run["state"] in ("succeeded", "failed")
            and run["superseded_by"] is None
            and run["restores"] is None
            and run["undone_by"] is None
            and run["backfill_id"] != backfill["id"]
        ]
        behavior, start, end = backfill["reprocess_behavior"], interval["interval_start"], interval["interval_end"]
        done = behavior != "completed" and all(
            self._kept(finished, start + n * STEP, (start, end), behavior) for n in range((end - start) // STEP)
        )
        self.require(
            done == (interval["reason"] == "already exists"),
            lambda: f"{interval} of {backfill} is {'' if done else 'not '}done by {finished}",
        )

    def _kept(
        self, finished: Sequence[Values], moment: datetime, interval: tuple[datetime, datetime], behavior: str
    ) -> bool:
        there = [run for run in finished if run["interval_start"] <= moment < run["interval_end"]]
        last = max(there, key=lambda run: run["id"], default=None)
        if last is None:
            return False
        own = (last["interval_start"], last["interval_end"]) == interval
        return bool(last["state"] == "succeeded" or (own and behavior == "none"))
