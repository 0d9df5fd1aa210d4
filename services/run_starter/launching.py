"""Builds launch requests from claimed rows, and hands them over after the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping

from retrofill.bus.crash import crash_point
from retrofill.bus.transaction import Transaction
from retrofill.domain.attempt import AttemptMode
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.store import pipelines
from run_starter.definitions import Definitions
from run_starter.executors import Executor, LaunchRequest, RunToDo


@dataclass(frozen=True)
class Launching:
    """The drivers of this instance. ``launched`` is called after each hand-over."""

    executor: Executor
    definitions: Definitions
    lease_seconds: float
    launched: Callable[[], None]

    def launch_of(
        self,
        backfill: RowMapping,
        attempt_id: int,
        mode: AttemptMode,
        runs: Sequence[RowMapping],
        pipeline: PipelineDefinition,
        earlier: Sequence[int] = (),
    ) -> LaunchRequest:
        """``runs`` are rows of ``backfill``, as before the claim."""
        publishes = mode == AttemptMode.PUBLISH
        return LaunchRequest(
            backfill_id=backfill["id"],
            attempt_id=attempt_id,
            mode=mode,
            runs=tuple(_published(row) if publishes else _executed(row) for row in runs),
            pipeline=pipeline,
            conf=backfill["conf"],
            lease_seconds=self.lease_seconds,
            trace=backfill["traceparent"],
            earlier=tuple(earlier),
        )

    def definitions_now(self, tx: Transaction, rows: Sequence[RowMapping]) -> dict[str, PipelineDefinition]:
        """The definitions for runs that start now: as planned, or with the latest code if followed.

        The caller has locked the pipelines, so no new definition is applied meanwhile.
        """
        planned = self.definitions.of(tx.conn, [row["id"] for row in rows])
        following = {row["id"]: row["pipeline_no"] for row in rows if row["code_follows"]}
        if not following:
            return planned
        latest: Mapping[int, Any] = pipelines.codes(tx.conn, set(following.values()))
        return planned | {
            id: planned[id].model_copy(update={"code": latest[no]}) for id, no in following.items() if no in latest
        }

    def hand_over(self, launches: Sequence[LaunchRequest]) -> None:
        """Give launches to drivers. Call it after their claim has committed."""
        for each in launches:
            self.executor.launch(each)
        crash_point("claim:launched")
        self.launched()


def _executed(row: RowMapping) -> RunToDo:
    return RunToDo(row["id"], row["attempt"] + 1, row["interval_start"], row["interval_end"])


def _published(row: RowMapping) -> RunToDo:
    return RunToDo(
        row["id"],
        row["attempt"],
        row["interval_start"],
        row["interval_end"],
        publication=row["publication"] + 1,
        accepted_attempt=row["accepted_attempt"],
        outputs=tuple(row["outputs"]["folders"]),
    )
