"""Requests for backfills, and to undo them: the data intervals that each asks for, and its plan.

Also what is done if planning it exceeds Postgres's transaction timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from backfill_planner.answers import Draft, Request, answer
from retrofill_core.bus.faults import STATEMENT_TIMEOUT, TRANSACTION_TIMEOUT
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import BackfillRequested, BackfillUndoRequested
from retrofill_core.domain.backfill import ReprocessBehavior
from retrofill_core.domain.deadline import AT_PLANNING, OF_BACKFILL, alerts_counting_from, finish_by
from retrofill_core.domain.planning import Intervals, Reason, Rejection, find_intervals, unknown_pipeline
from retrofill_core.settings import Settings
from retrofill_core.store import backfills, pipelines, planning
from retrofill_core.store.backfills import Outcome
from retrofill_core.store.pipelines import StoredPipeline
from retrofill_core.store.undo import Undone, plan_undo, stored_undo

IDLE_IN_TRANSACTION_TIMEOUT = "25P03"
TIMEOUTS = (STATEMENT_TIMEOUT, TRANSACTION_TIMEOUT, IDLE_IN_TRANSACTION_TIMEOUT)
# The worker loop dead-letters a message after three tries alone: the third rejects the request.
TRIES = 2
# A smaller plan takes well below a second, so its timeout has another cause.
LARGE_RUNS = 10_000


class TimedOut:
    """Counts, per request, the timeouts of planning it alone on this instance."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def times(self, id: str) -> int:
        return self._times[id]

    @contextmanager
    def counted(self, id: str, *, alone: bool) -> Iterator[None]:
        """Count a timeout inside the block; that of a batch blames no single request."""
        try:
            yield
        except DBAPIError as e:
            if alone and getattr(e.orig, "sqlstate", None) in TIMEOUTS:
                self._times[id] += 1
            raise
        self._times.pop(id, None)


def too_slow(intervals: int, times: int) -> Rejection | None:
    """Reject a large request after ``TRIES`` timeouts."""
    if times < TRIES or intervals < LARGE_RUNS:
        return None
    return Rejection(
        Reason.TOO_MANY_RUNS,
        f"{intervals:,} data intervals are too many for this database: planning exceeded its transaction timeout {times} times "
        "(transaction_timeout of the planner's role); split the range into several requests",
    )


class KnownIntervals:
    """Data intervals of one step's requests, computed before its transaction because that may take seconds.

    Together they are not more than one request may have, so memory does not grow with the batch.
    """

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._known: dict[tuple[str, object], Intervals | Rejection] = {}
        # Rows that the step's plans write: runs and their deadlines.
        self._rows = 0

    def add(self, stored: StoredPipeline, body: BackfillRequested) -> bool:
        """Compute the intervals of one more request. False: they are too many for the same step."""
        key, rows_of_run = _key(stored, body), 1 + len(stored.definition.deadlines)
        most = max(0, self._max_runs - self._rows) // rows_of_run if self._rows else self._max_runs
        found = self._known.get(key) or find_intervals(stored.definition, body.spans, most)
        runs = len(found.starts) if isinstance(found, Intervals) else 0
        too_many = runs > most or (isinstance(found, Rejection) and found.reason == Reason.TOO_MANY_RUNS)
        if self._rows and too_many:
            return False
        self._known[key] = found
        self._rows += runs * rows_of_run
        return True

    def has(self, stored: StoredPipeline, body: BackfillRequested) -> bool:
        """Whether the intervals were computed, by this definition."""
        return _key(stored, body) in self._known

    def of(self, stored: StoredPipeline, body: BackfillRequested) -> Intervals | Rejection:
        """The intervals of a request, recomputed only if the pipeline has changed since."""
        return self._known.get(_key(stored, body)) or find_intervals(stored.definition, body.spans, self._max_runs)

    def forget(self) -> None:
        self._known.clear()
        self._rows = 0


def _key(stored: StoredPipeline, body: BackfillRequested) -> tuple[str, object]:
    return stored.hash, body.spans


def answer_request(
    tx: Transaction,
    request: Request[BackfillRequested],
    known: Mapping[str, Outcome],
    stored: StoredPipeline | None,
    intervals: KnownIntervals,
    settings: Settings,
    partitions: int,
) -> Outcome:
    """Plan one request, or repeat its recorded reply. Returns the reply. ``stored``: its pipeline, if it exists."""

    def decide() -> Draft | Rejection:
        return _draft(tx.conn, request, stored, intervals, settings)

    return answer(tx, request, known, request.body.pipeline, decide, partitions)


def _draft(
    conn: Connection,
    request: Request[BackfillRequested],
    stored: StoredPipeline | None,
    intervals: KnownIntervals,
    settings: Settings,
) -> Draft | Rejection:
    body = request.body
    if stored is None:
        return unknown_pipeline(body.pipeline, pipelines.all_names(conn))
    found = intervals.of(stored, body)
    if isinstance(found, Intervals):
        found = too_slow(len(found.starts), request.timed_out) or found
    made, _ = planning.decide(conn, settings, stored, body, found)
    if isinstance(made, Rejection):
        return made
    definition = stored.definition
    of_backfill = alerts_counting_from(definition.deadlines, *OF_BACKFILL)
    if body.finish_by is not None:
        of_backfill.append(finish_by(body.finish_by, body.finish_by_callback))
    return Draft(
        stored,
        made,
        max_active_runs=body.max_active_runs or definition.max_active_runs,
        columns=columns_of(body),
        backwards=body.run_backwards,
        of_backfill=of_backfill,
        of_runs=alerts_counting_from(definition.deadlines, *AT_PLANNING),
    )


def columns_of(body: BackfillRequested) -> dict[str, Any]:
    """The columns of a backfill that are as its request says."""
    return {
        "batch_size": body.batch_size,
        "reprocess_behavior": str(body.reprocess_behavior),
        "run_backwards": body.run_backwards,
        "conf": body.conf,
        "code_follows": body.latest_code,
        **backfills.budget_columns(body.budget),
    }


def answer_undo(
    tx: Transaction,
    request: Request[BackfillUndoRequested],
    known: Mapping[str, Outcome],
    undone: Undone | None,
    settings: Settings,
    partitions: int,
) -> Outcome:
    """Plan one undo, or repeat its recorded reply. An undo is a backfill too, whose runs publish what was replaced.

    Which intervals it has and why it is refused is in ``retrofill_core.store.undo``, which dry runs share.
    Returns the reply. ``undone``: the backfill, if it exists.
    """
    pipeline = None if undone is None else undone.pipeline
    return answer(tx, request, known, pipeline, lambda: _undo_draft(tx.conn, request, undone, settings), partitions)


def _undo_draft(
    conn: Connection, request: Request[BackfillUndoRequested], undone: Undone | None, settings: Settings
) -> Draft | Rejection:
    body = request.body
    stored = None if undone is None else stored_undo(undone)
    made = plan_undo(conn, body, undone, stored, settings.max_plan_runs)
    if isinstance(made, Rejection):
        return made
    if (rejection := too_slow(len(made.skipped), request.timed_out)) is not None:
        return rejection
    assert undone is not None and stored is not None  # there is a plan
    behavior = str(ReprocessBehavior.COMPLETED)
    return Draft(
        stored,
        made,
        max_active_runs=body.max_active_runs or undone.max_active_runs,
        columns={"undoes": undone.id, "reprocess_behavior": behavior, "run_backwards": False, "conf": {}},
        undoes=undone.id,
    )
