"""Commands of clients in a schedule: to backfills, and to their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import partial

from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillChangeRequested,
    BackfillDiscardRequested,
    BackfillPauseRequested,
    BackfillPublishRequested,
    BackfillResumeRequested,
    RunCancelRequested,
    RunRetryRequested,
)
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import Budget, OnRunFailure
from tests.simulation.memory.rows import Tx
from tests.simulation.world import World

# A date of most backfills.
SOME_DAY = date(2020, 1, 1)
# A failed run is retried after at most so many seconds: while others are live, or all have ended.
RETRY_SECONDS = 6.0
REVIEW_SECONDS = 3.0


class Commands:
    """``at`` plans an action, so many seconds from now."""

    def __init__(self, world: World, at: Callable[[float, Callable[[], object]], None]) -> None:
        self._world = world
        self._random = world.random
        self._at = at
        # How many failures users will notice, who then retry the run.
        self.retries = 0

    def watch(self) -> None:
        """From now on, users notice some failures, and most reviews."""
        self._world.database.on_commit.append(self._see_reviews)
        self.retries = self._random.choice([0, 0, 1, 3])
        if self.retries:
            self._world.database.on_commit.append(self._see_failures)

    def _see_failures(self, tx: Tx) -> None:
        """Retry failed runs, sometimes those of one day only."""
        for table, old, new in tx.changes:
            if table != "run" or not old or not new or old["state"] == new["state"] or new["state"] != "failed":
                continue
            if self.retries > 0 and self._random.random() < 0.7:
                self.retries -= 1
                id, day = new["backfill_id"], new["interval_start"]
                command = self._random.choice(
                    [RunRetryRequested(all_failed=True), RunRetryRequested(intervals=(day.date(),))]
                )
                self._at(self._random.random() * RETRY_SECONDS, partial(self.retry, id, command))

    def _see_reviews(self, tx: Tx) -> None:
        """Publish or discard what is in review; some change their mind too late."""
        for table, old, new in tx.changes:
            if table != "backfill" or not old or not new or new["state"] != "in_review":
                continue
            if old["state"] == "in_review" or self._random.random() < 0.3:
                continue
            publish = BackfillPublishRequested(force=self._random.random() < 0.3, intervals=self._some_days(new["id"]))
            ends = self._random.choice([publish, publish, BackfillDiscardRequested()])
            after = self._random.random() * REVIEW_SECONDS
            if self._random.random() < 0.5:
                # Before the review ends, or while what it approved is published.
                self._at(self._random.random() * 2 * REVIEW_SECONDS, partial(self._change_a_place, new["id"]))
            self._at(after, partial(self._world.publish, Topic.BACKFILL_REQUESTS, new["id"], ends))
            if self._random.random() < 0.4:
                after += self._random.random()
                cancel = BackfillCancelRequested()
                self._at(after, partial(self._world.publish, Topic.BACKFILL_REQUESTS, new["id"], cancel))

    def _some_days(self, id: str) -> tuple[date, ...]:
        """Some of the days of a backfill; mostly none, which means all."""
        mine = [row for row in self._world.database.rows("run") if row["backfill_id"] == id]
        if not mine or self._random.random() < 0.6:
            return ()
        chosen = self._random.sample(mine, self._random.choice([1, (len(mine) + 1) // 2]))
        return tuple(row["interval_start"].date() for row in chosen)

    def _change_a_place(self, id: str) -> None:
        """Somebody corrects an interval of a backfill that is reviewed."""
        rows = self._world.database.rows("run")
        staged = [row for row in rows if row["backfill_id"] == id and row["state"] in ("staged", "publishing")]
        if staged:
            self._world.places.change(self._random.choice(staged)["outputs"]["folders"][0])

    def retry(self, id: str, command: RunRetryRequested) -> None:
        """Retry runs of a backfill, often after their code was fixed; sometimes twice."""
        if self._random.random() < 0.7:
            self._world.fixed |= self._world.failing
        self._world.publish(Topic.BACKFILL_REQUESTS, id, command, times=self._random.choice([1, 1, 2]))

    def command(self, ids: Sequence[str]) -> None:
        """Pause, resume, publish, discard, change or cancel a backfill, which may be unplanned or ended, or cancel or
        retry some of its runs; sometimes twice.
        """
        id = self._random.choice(ids)
        command = self._random.choice(
            [
                *(BackfillPauseRequested(), BackfillResumeRequested(budget=self.budget()), BackfillCancelRequested()),
                *[self.run_cancel(id)] * 3,
                *(RunRetryRequested(all_failed=True), self.change()),
                *(BackfillPublishRequested(), BackfillDiscardRequested()),
            ]
        )
        self._world.publish(Topic.BACKFILL_REQUESTS, id, command, times=self._random.choice([1, 1, 2]))

    def budget(self) -> Budget | None:
        """Limits that some backfills reach: a run takes a core-hour."""
        limits = {"failed_runs": self._random.choice([1, 2]), "core_hours": self._random.choice([2, 5])}
        chosen = self._random.choice([(), (), (), ("failed_runs",), ("core_hours",), ("failed_runs", "core_hours")])
        return Budget.model_validate({name: limits[name] for name in chosen}) if chosen else None

    def change(self) -> BackfillChangeRequested:
        """Some new values; perhaps none, which is refused."""
        return BackfillChangeRequested(
            max_active_runs=self._random.choice([None, 1, 2, 3]),
            batch_size=self._random.choice([None, 1, 2]),
            on_run_failure=self._random.choice([None, *OnRunFailure]),
        )

    def run_cancel(self, id: str) -> RunCancelRequested:
        """Cancel one or two runs of a backfill: planned ones, by date or id, or perhaps none."""
        mine = [row for row in self._world.database.rows("run") if row["backfill_id"] == id]
        open_ones = [row for row in mine if row["finished_at"] is None] or mine
        chosen = self._random.sample(open_ones, min(len(open_ones), self._random.choice([1, 1, 2])))
        if not chosen:
            return RunCancelRequested(intervals=(SOME_DAY,))
        if self._random.random() < 0.5:
            return RunCancelRequested(run_ids=tuple(row["id"] for row in chosen))
        return RunCancelRequested(intervals=tuple(row["interval_start"].date() for row in chosen))
