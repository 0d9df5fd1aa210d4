"""Writes the outcomes of reports, lost leases and cancels: rows, events, deadlines and wake-ups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import RowMapping

from retrofill.bus.faults import Conflict
from retrofill.bus.observability import metrics
from retrofill.bus.transaction import Transaction
from retrofill.contract.runs import (
    RunAttemptLost,
    RunCancelled,
    RunEvent,
    RunFailed,
    RunPublishing,
    RunStarted,
    RunSucceeded,
    TaskStateChanged,
)
from retrofill.contract.states import IntervalStateChanged, interval_key
from retrofill.contract.topics import Topic
from retrofill.deadlines.arming import resolve
from retrofill.domain.run import LIVE, MACHINE, RunState
from retrofill.domain.task_run import MACHINE as TASK_MACHINE
from retrofill.domain.task_run import TaskState
from retrofill.store import deadlines, task_runs
from retrofill.store import runs as store
from retrofill.store.transition import IfNull
from run_starter.decide import RunOutcome, TaskStep
from run_starter.losses import stored
from run_starter.memory import backfill_key, pipeline_key, slot_freed

S = RunState
_EVENTS: dict[RunState, type[RunEvent]] = {S.SUCCEEDED: RunSucceeded, S.FAILED: RunFailed, S.CANCELLED: RunCancelled}


def facts(row: RowMapping, pipeline: str, now: datetime) -> dict[str, Any]:
    """The fields that all events about a run have."""
    return {
        "backfill_id": row["backfill_id"],
        "pipeline": pipeline,
        "run_id": row["id"],
        "attempt": row["attempt"],
        "interval_start": row["interval_start"],
        "interval_end": row["interval_end"],
        "at": now,
    }


def write_starts(
    tx: Transaction,
    rows: Mapping[int, RowMapping],
    outcomes: Mapping[int, RunOutcome],
    pipelines: Mapping[str, str],
    now: datetime,
) -> None:
    """Move runs to ``running`` at the first report of their attempt."""
    starting = [rows[id] for id, outcome in outcomes.items() if outcome.starts]
    values = {"started_at": IfNull(now)}
    _landed(store.move(tx.conn, S.RUNNING, _keys(starting), values, from_states=[S.STARTING]), starting)
    for row in starting:
        fields = facts(row, pipelines[row["backfill_id"]], now)
        started = RunStarted(**fields, code_sha256=row["code_sha256"])
        tx.emit(Topic.RUN_EVENTS, row["backfill_id"], started, linger=True)
        _emit_state(tx, fields, S.RUNNING, linger=True)


def write_stages(
    tx: Transaction,
    rows: Mapping[int, RowMapping],
    outcomes: Mapping[int, RunOutcome],
    pipelines: Mapping[str, str],
    now: datetime,
) -> None:
    """Accept staged output, and release runs whose publisher was lost to another one."""
    staging = [(rows[id], outcome) for id, outcome in outcomes.items() if outcome.stages and outcome.ends is None]
    given = [
        {**key, "outputs": {"folders": list(o.stages)}}
        for (_, o), key in zip(staging, _keys([r for r, _ in staging]), strict=True)
    ]
    _landed(store.move(tx.conn, S.PUBLISHING, given, {}, from_states=[S.RUNNING]), staging)
    for row, outcome in staging:
        fields = facts(row, pipelines[row["backfill_id"]], now)
        emit_publishing(tx, fields, outcome.stages, row["publication"])
    tx.notify(store.RUN_CHANNEL, [row["id"] for row, _ in staging])
    orphans = [rows[id] for id, outcome in outcomes.items() if outcome.orphaned]
    lost = [
        store.LostPublisher(row["id"], row["publication"], row["lost_attempts"] + o.counted, stored(o.losses))
        for row in orphans
        for o in [outcomes[row["id"]]]
    ]
    if store.orphan(tx.conn, lost) != len(orphans):
        raise Conflict("a publishing run was changed by another transaction")
    for row in orphans:
        tx.schedule_check(backfill_key(row["backfill_id"]))


def emit_publishing(tx: Transaction, fields: dict[str, Any], outputs: Sequence[str], publication: int) -> None:
    """Announce that a run's output is being published."""
    tx.emit(
        Topic.RUN_EVENTS,
        fields["backfill_id"],
        RunPublishing(**fields, outputs=tuple(outputs), publication=publication),
    )
    _emit_state(tx, fields, S.PUBLISHING)


def write_tasks(
    tx: Transaction,
    rows: Mapping[int, RowMapping],
    steps: Sequence[TaskStep],
    pipelines: Mapping[str, str],
    now: datetime,
) -> None:
    """Write task steps in waves: the n-th step of every task, one statement per new state."""
    waves: dict[int, list[TaskStep]] = {}
    seen: dict[tuple[int, int, str], int] = {}
    for step in steps:
        key = (step.run_id, step.attempt, step.task)
        seen[key] = seen.get(key, -1) + 1
        waves.setdefault(seen[key], []).append(step)
    for wave in waves.values():
        for to, group in groupby(sorted(wave, key=lambda s: s.to), key=lambda s: s.to):
            _write_wave(tx, to, list(group), now)
    for step in steps:
        if step.announce:
            row = rows[step.run_id]
            event = TaskStateChanged(
                **facts(row, pipelines[row["backfill_id"]], now),
                task=step.task,
                state=step.to,
                try_number=step.try_number,
                error=step.error,
            )
            tx.emit(Topic.RUN_EVENTS, row["backfill_id"], event, linger=True)


def _write_wave(tx: Transaction, to: TaskState, steps: Sequence[TaskStep], now: datetime) -> None:
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
        values["started_at"] = IfNull(now)
    if to in TASK_MACHINE.terminal:
        values["finished_at"] = now
    _landed(task_runs.move(tx.conn, to, rows, values), steps)


def write_ends(
    tx: Transaction,
    rows: Mapping[int, RowMapping],
    outcomes: Mapping[int, RunOutcome],
    pipelines: Mapping[str, str],
    now: datetime,
) -> None:
    """End or requeue runs, cancel their open tasks, and announce the free slots."""
    ending = [(rows[id], outcome) for id, outcome in outcomes.items() if outcome.ends is not None]
    if not ending:
        return
    for to, group in groupby(sorted(ending, key=lambda e: str(e[1].ends)), key=lambda e: e[1].ends):
        assert to is not None
        _write_end(tx, to, list(group), now)
    task_runs.cancel_open(tx.conn, [(row["id"], row["attempt"]) for row, _ in ending], now)
    for row, outcome in ending:
        pipeline = pipelines[row["backfill_id"]]
        tx.emit(Topic.RUN_EVENTS, row["backfill_id"], _event(row, outcome, pipeline, now))
        assert outcome.ends is not None
        _emit_state(tx, facts(row, pipeline, now), outcome.ends)
        tx.schedule_check(backfill_key(row["backfill_id"]))
        tx.schedule_check(pipeline_key(row["pipeline_no"]))
    tx.after_commit.append(lambda: _count(outcome.ends for _, outcome in ending))
    resolve_deadlines(tx, [row["id"] for row, outcome in ending if outcome.ends != S.QUEUED])
    tx.notify(store.SLOT_CHANNEL, {slot_freed(row["pipeline_no"], tx.partition) for row, _ in ending})


def _emit_state(tx: Transaction, fields: dict[str, Any], state: RunState, *, linger: bool = False) -> None:
    """Publish the state on ``interval-states``. A run that never started has no record there."""
    key = interval_key(fields["pipeline"], fields["interval_start"])
    event = IntervalStateChanged.model_validate({**fields, "state": str(state)})
    tx.emit(Topic.INTERVAL_STATES, key, event, linger=linger)


def _count(states: Iterable[RunState | None]) -> None:
    for state in states:
        metrics.RUNS_ENDED.labels(state).inc()


def resolve_deadlines(tx: Transaction, run_ids: Sequence[int]) -> None:
    """Have the watcher decide on these runs' open deadlines now, not when they are due."""
    resolve(tx, deadlines.open_of_runs(tx.conn, run_ids))


def _write_end(tx: Transaction, to: RunState, ending: Sequence[tuple[RowMapping, RunOutcome]], now: datetime) -> None:
    given = [
        {
            "id": row["id"],
            "attempt": row["attempt"],
            "lost_attempts": row["lost_attempts"] + outcome.counted,
            "error": None if outcome.error is None else outcome.error.model_dump(exclude_none=True),
            "losses": stored(outcome.losses) if outcome.lost else row["losses"],
        }
        for row, outcome in ending
    ]
    values = {**store.NOT_LIVE, "finished_at": None if to == S.QUEUED else now}
    from_states = [state for state in LIVE if MACHINE.allows(state, to)]
    _landed(store.move(tx.conn, to, given, values, from_states=from_states), ending)


def _event(row: RowMapping, outcome: RunOutcome, pipeline: str, now: datetime) -> RunEvent:
    assert outcome.ends is not None
    fields = facts(row, pipeline, now)
    if outcome.ends == S.QUEUED:
        return RunAttemptLost(**fields, state=outcome.ends, error=outcome.loss)
    if outcome.ends == S.FAILED:
        return RunFailed(**fields, error=outcome.error)
    return _EVENTS[outcome.ends](**fields)


def _keys(rows: Sequence[RowMapping]) -> list[dict[str, Any]]:
    return [{"id": row["id"], "attempt": row["attempt"]} for row in rows]


def _landed(landed: int, expected: Sequence[object]) -> None:
    """Raise ``Conflict`` if a guarded update missed: the locked rows differ from what was read."""
    if landed != len(expected):
        raise Conflict(f"{len(expected) - landed} of {len(expected)} guarded updates changed no row")
