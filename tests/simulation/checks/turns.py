"""A batch that had its time begins no more runs while another backfill waits for its seat or slot."""

from __future__ import annotations

from datetime import timedelta

from run_starter.executors import LaunchRequest
from tests.simulation.checks.base import Check, Values

# Restated from ``docs/decisions/batches-give-way.md``.
SLICE, SLICE_OF_SUBMIT, WAITED = timedelta(seconds=5), timedelta(seconds=60), timedelta(seconds=1)


class Turns(Check):
    """Invariant 4: of waiting backfills, each gets a seat after a bounded time and one more run of a batch."""

    name = "turns"

    def waiting(self, launch: LaunchRequest) -> set[object]:
        """Who waits for what the attempt has, if it had its time."""
        attempt, now = self.row("attempt", "id", launch.attempt_id), self.database.now()
        own = SLICE if launch.pipeline.executor == "pool" else SLICE_OF_SUBMIT
        if attempt["began_at"] is None or attempt["began_at"] + own > now or attempt["slot"] is None:
            return set()
        live = [row for row in self.rows("attempt") if row["slot"] is not None]
        mine = sum(row["backfill_id"] == attempt["backfill_id"] for row in live)
        found: set[object] = {
            (row["shard"], row["until"])
            for row in self.rows("seat_wait")
            if row["pool"] == launch.pipeline.pool
            and row["until"] > now
            and row["since"] <= now - WAITED
            and (row["live"] <= 0 or row["live"] + 1 < mine)
            and self._serves(attempt["id"], submits=row["submits"])
        }
        if sum(row["pipeline_no"] == attempt["pipeline_no"] for row in live) >= self._limit(attempt):
            found |= {row["id"] for row in self.rows("backfill") if self._waits(row, attempt, live)}
        return found

    def _serves(self, attempt: int, *, submits: bool) -> bool:
        seat = self.row("seat", "attempt_id", attempt)
        return bool(self.row("host", "id", seat["host_id"])["submits"] if submits else seat["warm"])

    def _limit(self, attempt: Values) -> int:
        return int(self.row("pipeline", "no", attempt["pipeline_no"])["max_active_runs"])

    def _waits(self, other: Values, attempt: Values, live: list[Values]) -> bool:
        """Whether another backfill of the pipeline never had an attempt, though nothing else holds it up."""
        mine = self.row("backfill", "id", attempt["backfill_id"])
        alike = all(other["definition"].get(name) == mine["definition"].get(name) for name in ("executor", "pool"))
        return (
            other["pipeline_no"] == attempt["pipeline_no"]
            and other["state"] == "running"
            and other["requested_at"] <= self.database.now() - WAITED
            and alike
            and not any(row["backfill_id"] == other["id"] for row in self.rows("attempt"))
            and any(row["backfill_id"] == other["id"] and row["state"] == "queued" for row in self.rows("run"))
        )

    def answered(self, launch: LaunchRequest, what: str, waiting: set[object], *, answer: bool) -> None:
        """A host answered its driver. ``waiting``: when the question was asked."""
        if what != "may_begin" or not answer or launch.mode == "publish" or not waiting:
            return
        still = waiting & self.waiting(launch)
        self.require(not still, lambda: f"attempt {launch.attempt_id} begins another run though {still} wait")
