"""Limits how much of a batch one step takes on.

The rest waits for the next step, so neither memory nor time of a step grows with the batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from backfill_planner.barrier import PipelinesBarrier
from backfill_planner.requests import KnownIntervals
from retrofill_core.bus.handler import Hold, Received
from retrofill_core.bus.service import Context
from retrofill_core.contract.backfills import BackfillRequested, BackfillUndoRequested, RunRetryRequested
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.store import pipelines
from retrofill_core.store.engine import reading
from retrofill_core.store.pipelines import StoredPipeline

HOLD_SECONDS = 0.1
# A step whose intervals took this long to compute ends. Those of one request take a few seconds at most.
STEP_SECONDS = 1.0
# A definition of a megabyte takes ten in memory.
MOST_PIPELINES = 16
NEXT_STEP = 0.0


class Admission:
    """Decides how much of each batch is handled now, and computes the intervals for that."""

    def __init__(self, context: Context, intervals: KnownIntervals, barrier: PipelinesBarrier) -> None:
        self._context = context
        self._intervals = intervals
        self._barrier = barrier

    def admit(self, received: Sequence[Received]) -> Mapping[str, Hold]:
        """Hold what exceeds a step, and requests for pipelines not known yet."""
        self._intervals.forget()
        large = [one for one in received if _may_be_large(one)]
        if not large:
            return {}
        applied = {one.key for one in received if isinstance(one.message, PipelineApplied)}
        began, alone = time.monotonic(), False
        # Computing must not happen within a transaction, which Postgres ends when it is idle for long.
        with reading(self._context.engine) as conn:
            stored = _first_pipelines(conn, large)
            for number, one in enumerate(large):
                body = one.message if isinstance(one.message, BackfillRequested) else None
                # How many runs the others write is not known here. Nor is the definition, if it is in this batch.
                before, alone = alone, body is None or body.pipeline in applied
                late = time.monotonic() - began > STEP_SECONDS
                if number and (before or alone or late):
                    return _hold(one, NEXT_STEP)
                seconds = None if body is None else self._wait(conn, one, body, stored, applied)
                if seconds is not None:
                    return _hold(one, seconds)
        return {}

    def _wait(
        self,
        conn: Connection,
        one: Received,
        body: BackfillRequested,
        stored: Mapping[str, StoredPipeline | None],
        applied: set[str],
    ) -> float | None:
        """How long a request waits; ``None`` if this step plans it."""
        if body.pipeline not in stored:
            return NEXT_STEP
        pipeline = stored[body.pipeline]
        if pipeline is not None:
            return None if self._intervals.add(pipeline, body) else NEXT_STEP
        return None if body.pipeline in applied or self._barrier.as_of(conn, one.record) else HOLD_SECONDS


def _may_be_large(one: Received) -> bool:
    """Whether the message may write any number of runs."""
    match one.message:
        case BackfillRequested() | BackfillUndoRequested():
            return True
        case RunRetryRequested(all_failed=all_failed):
            return all_failed
    return False


def _first_pipelines(conn: Connection, large: Sequence[Received]) -> Mapping[str, StoredPipeline | None]:
    """The first pipelines that are requested; ``None`` for one that is not stored."""
    names = dict.fromkeys(one.message.pipeline for one in large if isinstance(one.message, BackfillRequested))
    first = list(names)[:MOST_PIPELINES]
    stored = pipelines.find(conn, first) if first else {}
    return {name: stored.get(name) for name in first}


def _hold(one: Received, seconds: float) -> Mapping[str, Hold]:
    return {one.record.topic: Hold(one.record.offset, seconds)}
