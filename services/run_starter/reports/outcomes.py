"""Applies outcomes: writes what happens to attempts, runs and tasks, and announces it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from retrofill.states import TASK_RUN_MACHINE as TASK_MACHINE
from retrofill.states import AttemptMode, AttemptState, TaskState
from retrofill_core.bus import metrics
from retrofill_core.bus.faults import Conflict
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.base import Cost
from retrofill_core.contract.runs import (
    RunAttemptLost,
    RunCancelled,
    RunEvent,
    RunFailed,
    RunHeldForReview,
    RunSplit,
    RunStarted,
    RunSucceeded,
    TaskStateChanged,
)
from retrofill_core.contract.topics import Topic
from retrofill_core.deadlines import resolve
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import LIVE, MACHINE, RunState
from retrofill_core.store import attempts, deadlines, hosts, undo
from retrofill_core.store import runs as store
from retrofill_core.store.claims import TURN
from retrofill_core.store.rows import Attempt, Run, present
from retrofill_core.store.transition import IfNull, Plus
from run_starter.announcing import emit_state, facts, publishing
from run_starter.memory import LEASES_KEY, SUSPECTS_KEY, backfill_key, pipeline_key, slot_freed, suspect_ended
from run_starter.reports.steps import (
    Accept,
    AwaitPublisher,
    Begin,
    End,
    Hold,
    HoldAgain,
    Kind,
    Outcome,
    Requeue,
    Split,
    TaskStep,
    stored,
)

NO_COST = Cost()
# Pause after an attempt in which nothing began.
IDLE_SECONDS = 1.0
NO_LIMIT: dict[str, Any] = {"times_out_at": None}
S = RunState
_ENDED: dict[RunState, type[RunEvent]] = {S.SUCCEEDED: RunSucceeded, S.FAILED: RunFailed, S.CANCELLED: RunCancelled}


@dataclass(frozen=True)
class Apply:
    """Writes an outcome about locked attempts and runs.

    ``pipelines``: names by backfill id. ``definitions``: of runs that may begin, by their ids.
    """

    tx: Transaction
    attempts: Mapping[int, Attempt]
    runs: Mapping[int, Run]
    pipelines: Mapping[str, str]
    definitions: Mapping[int, PipelineDefinition]
    now: datetime
    outcome: Outcome

    def starts(self) -> None:
        """Mark attempts and runs as running, and create the runs' task runs."""
        begun = [
            {"id": id, "spark_app_id": spark and spark.id, "spark_ui": spark and spark.ui}
            for id, spark in self.outcome.began.items()
        ]
        self._move_attempts(AttemptState.RUNNING, begun, {"began_at": self.now})
        rows = [self.runs[id] for id, _ in self.outcome.steps(Begin)]
        given = [{**_key(row), **self._starts_with(row)} for row in rows]
        values = {"started_at": IfNull(self.now), "attempt": Plus(1)}
        _landed(store.move(self.tx.conn, S.RUNNING, given, values, from_states=[S.STARTING]), rows)
        for until in filter(None, (each["times_out_at"] for each in given)):
            self.tx.schedule_check(LEASES_KEY, (until - self.now).total_seconds())
        known = [(row, self.definitions[row.id]) for row in rows if row.id in self.definitions]
        created = [(row.id, row.attempt + 1, task.name) for row, definition in known for task in definition.tasks]
        if created:
            store.create_tasks(self.tx.conn, created)
        for row, each in zip(rows, given, strict=True):
            fields = self._facts(row)
            started = RunStarted(**fields, attempt_id=row.attempt_id, code_sha256=each["code_sha256"])
            self.tx.emit(Topic.RUN_EVENTS, row.backfill_id, started, linger=True)
            emit_state(self.tx, fields, S.RUNNING, linger=True)

    def _starts_with(self, row: Run) -> dict[str, Any]:
        attempt = self.attempts[present(row.attempt_id)]
        until = times_out_at(self.definitions.get(row.id), attempt, self.now)
        return {"code_sha256": attempt.code.get("sha256"), "times_out_at": until}

    def task_steps(self) -> None:
        """Write task steps in waves: the n-th step of every task, one statement per new state."""
        waves: dict[int, list[TaskStep]] = {}
        seen: dict[tuple[int, int, str], int] = {}
        for step in self.outcome.tasks:
            key = (step.run_id, step.attempt, step.task)
            seen[key] = seen.get(key, -1) + 1
            waves.setdefault(seen[key], []).append(step)
        for wave in waves.values():
            for to, group in groupby(sorted(wave, key=lambda s: s.to), key=lambda s: s.to):
                self._write_wave(to, list(group))
        for step in self.outcome.tasks:
            if step.announce:
                row = self.runs[step.run_id]
                event = TaskStateChanged(
                    **self._facts(row), task=step.task, state=step.to, try_number=step.try_number, error=step.error
                )
                self.tx.emit(Topic.RUN_EVENTS, row.backfill_id, event, linger=True)

    def _write_wave(self, to: TaskState, steps: Sequence[TaskStep]) -> None:
        rows = [
            {
                "run_id": step.run_id,
                "attempt": step.attempt,
                "task": step.task,
                "try_number": step.try_number,
                "error": None if step.error is None else step.error.model_dump(exclude_none=True),
            }
            for step in steps
        ]
        values: dict[str, Any] = {}
        if to == TaskState.RUNNING:
            values["started_at"] = IfNull(self.now)
        if to in TASK_MACHINE.terminal:
            values["finished_at"] = self.now
        _landed(store.move_tasks(self.tx.conn, to, rows, values), steps)

    def acceptances(self) -> None:
        """Accept staged output."""
        rows = self._having(Accept)
        given = [
            {**_key(row), "outputs": {"folders": list(step.outputs)}, "accepted_attempt": row.attempt_id}
            for row, step in rows
        ]
        _landed(store.move(self.tx.conn, S.PUBLISHING, given, {}, from_states=[S.RUNNING]), rows)
        for row, step in rows:
            publishing(self.tx, self._facts(row), step.outputs, row.publication)
        self._hold()
        self._hold_again()
        self._changed(present(row.attempt_id) for row, _ in [*rows, *self._having(Hold), *self._having(HoldAgain)])

    def _hold(self) -> None:
        """Leave accepted output to the review of its backfill."""
        held = self._having(Hold)
        given = [
            {
                **_key(row),
                "outputs": {"folders": list(step.outputs), "bases": list(step.bases)},
                "accepted_attempt": row.attempt_id,
            }
            for row, step in held
        ]
        values = {"staged_at": self.now, **NO_LIMIT}
        _landed(store.move(self.tx.conn, S.STAGED, given, values, from_states=[S.RUNNING]), held)
        for row, step in held:
            self._held(row, step.outputs)
        resolve_deadlines(self.tx, [row.id for row, _ in held])

    def _hold_again(self) -> None:
        """Leave approved output that was not published to the next review. It is as staged as it was before."""
        held = self._having(HoldAgain)
        given = [
            {
                **_key(row),
                "outputs": {**(row.outputs or {}), "bases": list(step.bases), "changed": list(step.changed)},
                "review": step.review,
            }
            for row, step in held
        ]
        _landed(store.move(self.tx.conn, S.STAGED, given, NO_LIMIT, from_states=[S.PUBLISHING]), held)
        for row, step in held:
            self._held(row, row.folders, step.changed)

    def _held(self, row: Run, outputs: tuple[str, ...], changed: tuple[str, ...] = ()) -> None:
        fields = self._facts(row)
        event = RunHeldForReview(**fields, outputs=outputs, changed=changed)
        self.tx.emit(Topic.RUN_EVENTS, row.backfill_id, event)
        emit_state(self.tx, fields, S.STAGED)
        # It may have been approved or cancelled meanwhile.
        self.tx.schedule_check(backfill_key(row.backfill_id))

    def ends(self) -> None:
        """End, requeue or set aside runs, cancel their open tasks, and end attempts."""
        self._end_runs()
        self._leave_to_others()
        self._split()
        self._end_attempts()
        lost = [step.suspect for _, step in self.outcome.steps(Requeue)]
        if any(lost) or any(step.suspect for _, step in self.outcome.steps(Split)):
            # In case it is the turn of another backfill, and that does not take it.
            self.tx.schedule_check(SUSPECTS_KEY, TURN.total_seconds())
        over = [id for id, steps in self.outcome.runs.items() if isinstance(steps[-1], End | Requeue | Split)]
        store.cancel_open_tasks(self.tx.conn, [(id, self._number(self.runs[id])) for id in over], self.now)
        finished = [id for id, _ in self.outcome.steps(End)]
        resolve_deadlines(self.tx, finished)

    def _end_runs(self) -> None:
        ended = self._having(End)
        for to, group in groupby(sorted(ended, key=lambda e: e[1].state), key=lambda e: e[1].state):
            given = [
                {
                    **_key(row),
                    "lost_attempts": row.lost_attempts + step.counted,
                    "error": None if step.error is None else step.error.model_dump(exclude_none=True),
                    "losses": row.losses if step.losses is None else stored(step.losses),
                    "published": step.stored,
                }
                for row, step in group
            ]
            values = {"finished_at": self.now, "lost_at": None, "publish_after": None, "publish_error": None}
            _landed(store.move(self.tx.conn, to, given, values, from_states=_live_to(to)), given)
        undoing = [row.id for row, step in ended if row.restores and step.state == S.SUCCEEDED]
        if undoing:
            undo.mark_undone(self.tx.conn, undoing)
        for row, step in ended:
            fields = self._facts(row)
            more: dict[str, Any] = {"error": step.error} if step.state == S.FAILED else {}
            more |= {"cost": step.cost} if step.cost is not None else {}
            if changed := tuple(each.name for each in step.published if each.replaced_change):
                more["replaced_changes"] = changed
            self.tx.emit(Topic.RUN_EVENTS, row.backfill_id, _ENDED[step.state](**fields, **more))
            emit_state(self.tx, fields, step.state)
            self.tx.schedule_check(backfill_key(row.backfill_id))
        self.tx.after_commit.append(lambda: _count(str(step.state) for _, step in ended))

    def _leave_to_others(self) -> None:
        """Queue runs again, and leave accepted ones to another publisher."""
        again = self._having(Requeue)
        self._move_lost(S.QUEUED, again, [{} for _ in again])
        waiting = self._having(AwaitPublisher)
        self._move_lost(S.STAGED, waiting, [self._put_off(step) for _, step in waiting])
        for row, step in again:
            if step.loss is not None:
                fields = self._facts(row)
                event = RunAttemptLost(**fields, state=S.QUEUED, error=step.loss, counted=step.counted)
                self.tx.emit(Topic.RUN_EVENTS, row.backfill_id, event)
                emit_state(self.tx, fields, S.QUEUED)
        for row, left in waiting:
            self.tx.schedule_check(backfill_key(row.backfill_id), left.seconds)
        self.tx.after_commit.append(lambda: _count(str(S.QUEUED) for _, step in again if step.loss is not None))

    def _split(self) -> None:
        """Queue the runs of a range again, to be tried in smaller ones.

        One that failed by itself is not, or no longer, suspected of ending drivers.
        """
        split = self._having(Split)
        given = [
            {
                **_key(row),
                "range_limit": step.size,
                "losses": stored(step.losses),
                "lost_at": self.now if step.suspect else None,
                "error": None,
            }
            for row, step in split
        ]
        _landed(store.move(self.tx.conn, S.QUEUED, given, NO_LIMIT, from_states=[S.RUNNING]), split)
        for row, step in split:
            fields = self._facts(row)
            self.tx.emit(Topic.RUN_EVENTS, row.backfill_id, RunSplit(**fields, size=step.size, error=step.error))
            emit_state(self.tx, fields, S.QUEUED)

    def _put_off(self, step: AwaitPublisher) -> dict[str, Any]:
        """When an accepted run may have its next publisher, and why it needs one."""
        return {
            "publish_after": self.now + timedelta(seconds=step.seconds) if step.seconds else None,
            "publish_error": None if step.error is None else step.error.model_dump(exclude_none=True),
        }

    def _move_lost(
        self,
        to: RunState,
        lost: Sequence[tuple[Run, Requeue | AwaitPublisher]],
        more: Sequence[Mapping[str, Any]],
    ) -> None:
        given = [
            {
                **_key(row),
                "lost_attempts": row.lost_attempts + step.counted,
                "losses": stored(step.losses),
                "lost_at": self.now if step.suspect else row.lost_at,
                **also,
            }
            for (row, step), also in zip(lost, more, strict=True)
        ]
        _landed(store.move(self.tx.conn, to, given, NO_LIMIT, from_states=_live_to(to)), lost)

    def _end_attempts(self) -> None:
        rows = [
            {
                "id": id,
                "outcome": str(end.outcome),
                "runs": end.runs,
                "error": None if end.error is None else end.error.model_dump(exclude_none=True),
                **(end.cost or NO_COST).model_dump(),
            }
            for id, end in self.outcome.attempts.items()
        ]
        self._move_attempts(AttemptState.ENDED, rows, {"ended_at": self.now, **attempts.NOT_LIVE})
        hosts.free(self.tx.conn, {id: id in self.outcome.stays for id in self.outcome.attempts})
        freed: set[str] = set()
        for id in self.outcome.attempts:
            row = self.attempts[id]
            keys = [backfill_key(row.backfill_id), pipeline_key(row.pipeline_no)]
            freed.add(slot_freed(row.pipeline_no, self.tx.partition))
            if row.suspect_server is not None:
                keys.append(SUSPECTS_KEY)
                freed.add(suspect_ended(self.tx.partition))
            # What was not allowed to begin would not be a moment later either.
            idle = row.began_at is None and id not in self.outcome.began
            for key in keys:
                self.tx.schedule_check(key, IDLE_SECONDS if idle else 0.0)
        self.tx.notify(store.SLOT_CHANNEL, freed)
        self._changed(self.outcome.attempts)

    def renewals(self) -> dict[int, datetime]:
        """Extend the leases of attempts that are alive; returns their new ends."""
        alive = [id for id in self.outcome.alive if id not in self.outcome.attempts]
        # Each by its own length, by which its driver ends itself.
        until = {id: self.now + timedelta(seconds=self.attempts[id].lease_seconds) for id in alive}
        attempts.extend_leases(self.tx.conn, until)
        return until

    def _move_attempts(self, to: AttemptState, rows: Sequence[Mapping[str, Any]], values: dict[str, Any]) -> None:
        _landed(attempts.move(self.tx.conn, to, rows, values), rows)

    def _having(self, kind: type[Kind]) -> list[tuple[Run, Kind]]:
        """The rows of the runs with a step of this kind, and the step."""
        return [(self.runs[id], step) for id, step in self.outcome.steps(kind)]

    def _changed(self, attempt_ids: Iterable[int]) -> None:
        self.tx.notify(attempts.ATTEMPT_CHANNEL, dict.fromkeys(attempt_ids))

    def _facts(self, row: Run) -> dict[str, Any]:
        return facts(row, self.pipelines[row.backfill_id], self.now, self._number(row))

    def _number(self, row: Run) -> int:
        """How often the run has begun by now."""
        began = any(isinstance(step, Begin) for step in self.outcome.runs.get(row.id, ()))
        return row.attempt + began


def resolve_deadlines(tx: Transaction, run_ids: Collection[int]) -> None:
    """Have the watcher decide on these runs' open deadlines now, not when they are due."""
    if run_ids:
        resolve(tx, deadlines.open_of_runs(tx.conn, list(run_ids)))


def _live_to(to: RunState) -> list[RunState]:
    return [state for state in LIVE if MACHINE.allows(state, to)]


def _count(states: Iterable[str]) -> None:
    for state in states:
        metrics.RUNS_ENDED.labels(state).inc()


def _key(row: Run) -> dict[str, Any]:
    return {"id": row.id, "attempt_id": row.attempt_id}


def _landed(landed: int, expected: Sequence[object]) -> None:
    """Raise ``Conflict`` if a guarded update missed: the locked rows differ from what was read."""
    if landed != len(expected):
        raise Conflict(f"{len(expected) - landed} of {len(expected)} guarded updates changed no row")


def times_out_at(definition: PipelineDefinition | None, attempt: Attempt, now: datetime) -> datetime | None:
    """When a run of the attempt that begins now times out. Each run of a range has the time of all."""
    if definition is None or definition.run_timeout_seconds is None:
        return None
    return now + timedelta(seconds=definition.run_timeout_seconds * times(attempt))


def times(attempt: Attempt) -> int:
    """How many runs of the attempt have their time limits together."""
    return attempt.runs if attempt.mode == AttemptMode.RANGE else 1
