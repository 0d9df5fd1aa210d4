"""Builds launch requests from claimed rows, and hands them over after the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any, Self

from pydantic import ValidationError
from sqlalchemy import Connection

from retrofill.protocol.launch import LaunchedRun
from retrofill.states import EXECUTES, AttemptMode
from retrofill.system.crash import crash_point
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition
from retrofill_core.domain.run import MACHINE
from retrofill_core.store import launches, pipelines
from retrofill_core.store.launches import Earlier
from retrofill_core.store.rows import Backfill, Run, present
from run_starter.definitions import Definitions
from run_starter.executors import Launcher, LaunchRequest


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs of a backfill that an attempt executes or publishes, as they were before its claim."""

    backfill: Backfill
    mode: AttemptMode
    runs: Sequence[Run]
    definition: PipelineDefinition


@dataclass(frozen=True, slots=True)
class Before:
    """What attempts before left to the launches of some batches.

    ``tries``: of tasks that ended their drivers, by run and task. ``accepted``: all runs that those
    attempts staged whose output is published, by attempt.
    """

    earlier: list[Earlier]
    unpublished: list[Earlier]
    publishers: list[Earlier]
    tries: Mapping[int, Mapping[str, int]]
    accepted: Mapping[int, Sequence[Run]]

    @classmethod
    def read(cls, conn: Connection, executed: Sequence[Batch], published: Sequence[Batch]) -> Self:
        again, accepted = ([(each.backfill.id, each.runs) for each in some] for some in (executed, published))
        return cls(
            launches.earlier(conn, again),
            launches.unpublished(conn, again),
            launches.publishers(conn, accepted),
            # Only runs that have begun before can have any.
            launches.tries_used(
                conn, [row.id for each in executed if _retries(each) for row in each.runs if row.attempt]
            ),
            launches.accepted_of(conn, {id for each in published for id in _accepted(each.runs)}),
        )


def _accepted(runs: Sequence[Run]) -> list[int]:
    """The attempts that staged their output."""
    return [*dict.fromkeys(present(row.accepted_attempt) for row in runs)]


def _retries(batch: Batch) -> bool:
    return any(task.retries for task in batch.definition.tasks)


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
        self, attempt_id: int, batch: Batch, before: Before, lease_seconds: float | None = None
    ) -> LaunchRequest:
        backfill, runs = batch.backfill, batch.runs
        published = partial(_published, forced=backfill.forced)
        siblings: Sequence[Run] = ()
        publishes = batch.mode == AttemptMode.PUBLISH
        if publishes:
            to_do = [published(row) for row in runs]
            siblings = [row for id in _accepted(runs) for row in before.accepted[id]]
        else:
            to_do = [_executed(row, before.tries.get(row.id, {})) for row in runs]
        own = {row.id for row in runs}

        def with_any(attempts: Sequence[Earlier]) -> tuple[int, ...]:
            return tuple(each.id for each in attempts if each.id != attempt_id and each.has_any(backfill.id, runs))

        return LaunchRequest(
            backfill_id=backfill.id,
            attempt_id=attempt_id,
            mode=batch.mode,
            runs=tuple(to_do),
            pipeline=batch.definition,
            conf=backfill.conf,
            lease_seconds=lease_seconds or self.lease_seconds,
            trace=backfill.traceparent,
            installation=self.installation,
            keep_replaced_days=self.keep_replaced_days,
            staged_tables=self.staged_tables,
            # Publishers need no sessions.
            earlier=() if publishes else with_any(before.earlier),
            unpublished=() if publishes else with_any(before.unpublished),
            siblings=tuple(published(row) for row in siblings if row.id not in own),
            publishers=with_any(before.publishers) if publishes else (),
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
        id = found.backfill.id
        definition, code = self.definitions.of(conn, [id]).get(id), code_of(found.attempt.code)
        if definition is None or code is None:
            return None
        mode, runs = AttemptMode(found.attempt.mode), found.runs
        if mode == AttemptMode.PUBLISH:
            # Their numbers were counted up when the attempt got them.
            runs = [replace(row, publication=row.publication - 1) for row in runs]
        batch = Batch(found.backfill, mode, runs, definition.model_copy(update={"code": code}))
        before = Before.read(conn, *(([batch], []) if mode in EXECUTES else ([], [batch])))
        return self.launch_of(attempt_id, batch, before, found.attempt.lease_seconds)

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


def _executed(row: Run, tries: Mapping[str, int]) -> LaunchedRun:
    return LaunchedRun(
        row.id,
        row.attempt + 1,
        row.interval_start,
        row.interval_end,
        outputs=row.folders if row.restores else (),
        tries=tries,
        restores=row.restores,
    )


def _published(row: Run, *, forced: bool) -> LaunchedRun:
    outputs = row.outputs or {}
    return LaunchedRun(
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
