"""Builds launch requests from claimed rows, and hands them over after the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection

from retrofill.states.attempt import EXECUTES, AttemptMode
from retrofill.system.crash import crash_point
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition
from retrofill_core.domain.run import MACHINE
from retrofill_core.store import launches, pipelines
from retrofill_core.store.rows import Backfill, Run, present
from run_starter.definitions import Definitions
from run_starter.executors import Launcher, LaunchRequest, RunToDo


@dataclass(frozen=True)
class Launching:
    """Launches attempts here, each once. ``launched`` is called after each hand-over."""

    executor: Launcher
    definitions: Definitions
    lease_seconds: float
    launched: Callable[[], None]
    # Its id: others may use the same Spark.
    installation: str = ""
    keep_replaced_days: int = 0
    staged_tables: str | None = None
    # Attempts that were handed over while they had a seat here.
    known: set[int] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def launch_of(
        self,
        backfill: Backfill,
        attempt_id: int,
        mode: AttemptMode,
        runs: Sequence[Run],
        pipeline: PipelineDefinition,
        earlier: Sequence[int] = (),
        lease_seconds: float | None = None,
        tries: Mapping[int, Mapping[str, int]] | None = None,
        unpublished: Sequence[int] = (),
        publishers: Sequence[int] = (),
        accepted: Sequence[Run] = (),
    ) -> LaunchRequest:
        """``runs`` are rows of ``backfill``, as before the claim; ``tries``: see ``tries_used``.

        ``accepted``: of a publication, all runs that the same attempt staged.
        """
        own = {row.id for row in runs}
        publishes = mode == AttemptMode.PUBLISH
        return LaunchRequest(
            backfill_id=backfill.id,
            attempt_id=attempt_id,
            mode=mode,
            runs=tuple(
                _published(row, forced=backfill.forced) if publishes else _executed(row, tries or {}) for row in runs
            ),
            pipeline=pipeline,
            conf=backfill.conf,
            lease_seconds=lease_seconds or self.lease_seconds,
            trace=backfill.traceparent,
            installation=self.installation,
            keep_replaced_days=self.keep_replaced_days,
            staged_tables=self.staged_tables,
            earlier=tuple(earlier),
            unpublished=tuple(unpublished),
            siblings=tuple(_published(row, forced=backfill.forced) for row in accepted if row.id not in own),
            publishers=tuple(publishers),
            review=backfill.review,
        )

    def first(self, attempt_id: int) -> bool:
        """Whether nothing was done with the attempt here before."""
        with self._lock:
            is_new = attempt_id not in self.known
            self.known.add(attempt_id)
            return is_new

    def forget(self, attempt_ids: Collection[int]) -> None:
        """These have no seat here any more."""
        with self._lock:
            self.known.difference_update(attempt_ids)

    def derive(self, conn: Connection, attempt_id: int) -> LaunchRequest | None:
        """The launch of an attempt, from its rows. ``None`` if it is over, or of a newer release."""
        found = launches.given(conn, attempt_id)
        if found is None:
            return None
        backfill, runs = found.backfill, found.runs
        definition = self.definitions.of(conn, [backfill.id]).get(backfill.id)
        if definition is None:
            return None
        code = code_of(found.attempt.code)
        if code is None:
            return None
        mode = AttemptMode(found.attempt.mode)
        # Publishers need no sessions.
        of_runs = [(backfill.id, runs)]
        again, accepted = (of_runs, []) if mode in EXECUTES else ([], of_runs)
        # Their numbers were counted up when the attempt got them.
        before = [replace(row, publication=row.publication - (mode == AttemptMode.PUBLISH)) for row in runs]
        return self.launch_of(
            backfill,
            attempt_id,
            mode,
            before,
            definition.model_copy(update={"code": code}),
            [each.id for each in launches.earlier(conn, again)],
            found.attempt.lease_seconds,
            tries_used(conn, [(definition, runs)]),
            [each.id for each in launches.unpublished(conn, again) if each.id != attempt_id],
            [each.id for each in launches.publishers(conn, accepted)],
            [run for found in launches.accepted_of(conn, accepted_attempts([(mode, runs)])).values() for run in found],
        )

    def definitions_now(self, tx: Transaction, rows: Sequence[Backfill]) -> dict[str, PipelineDefinition]:
        """The definitions for runs that start now: as planned, or with the latest code if followed.

        The caller has locked the pipelines, so no new definition is applied meanwhile.
        """
        planned = self.definitions.of(tx.conn, [row.id for row in rows])
        following = {row.id: row.pipeline_no for row in rows if row.code_follows}
        if not following:
            return planned
        latest: Mapping[int, Any] = pipelines.codes(tx.conn, set(following.values()))
        return planned | {
            id: planned[id].model_copy(update={"code": latest[no]}) for id, no in following.items() if no in latest
        }

    def hand_over(self, requests: Sequence[LaunchRequest]) -> None:
        """Give launches to drivers. Call it after their claim has committed."""
        for each in requests:
            if self.first(each.key):
                self.executor.launch(each)
        crash_point("claim:launched")
        self.launched()


def code_of(stored: object) -> CodeLocation | None:
    """Where an attempt's code is. ``None``: nobody knows, or only a newer release."""
    try:
        return None if stored is None else CodeLocation.model_validate(stored)
    except ValidationError:
        return None


def tries_used(
    conn: Connection, batches: Iterable[tuple[PipelineDefinition, Sequence[Run]]]
) -> dict[int, dict[str, int]]:
    """Tries of tasks that timed out and ended their drivers, by run and task.

    Asks only about runs that have begun before and can have any.
    """
    limited = [rows for of, rows in batches if any(task.retries and task.timeout_seconds for task in of.tasks)]
    return launches.tries_used(conn, [row.id for rows in limited for row in rows if row.attempt])


def accepted_attempts(batches: Iterable[tuple[AttemptMode, Sequence[Run]]]) -> set[int]:
    """The accepted attempts whose output these batches publish."""
    return {present(rows[0].accepted_attempt) for mode, rows in batches if mode == AttemptMode.PUBLISH}


def _executed(row: Run, tries: Mapping[int, Mapping[str, int]]) -> RunToDo:
    more = tries.get(row.id, {})
    return RunToDo(
        row.id,
        row.attempt + 1,
        row.interval_start,
        row.interval_end,
        outputs=row.folders if row.restores else (),
        tries=more,
        restores=row.restores,
    )


def _published(row: Run, *, forced: bool) -> RunToDo:
    outputs = row.outputs or {}
    return RunToDo(
        row.id,
        row.attempt,
        row.interval_start,
        row.interval_end,
        publication=row.publication + 1,
        accepted_attempt=row.accepted_attempt,
        outputs=row.folders,
        bases=() if forced else tuple(outputs.get("bases", ())),
        over_changes=forced or bool(outputs.get("changed")),
        review=row.review,
        over=row.state in MACHINE.terminal,
    )
