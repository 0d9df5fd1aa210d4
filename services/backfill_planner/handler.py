"""The planner's handler: applies pipelines, answers requests and commands, checks backfills and
announces their progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from backfill_planner import commands, endings
from backfill_planner.admission import Admission, PipelinesBarrier
from backfill_planner.answers import Request
from backfill_planner.progress import EVERY_SECONDS as PROGRESS_SECONDS
from backfill_planner.progress import PROGRESS, Announcer
from backfill_planner.requests import KnownIntervals, TimedOut, answer_request, answer_undo
from retrofill_core.bus.faults import Conflict, Poison
from retrofill_core.bus.handler import ALL_ACTIVE, EVERY_SECONDS, Handler, Hold, Received, check_all_active
from retrofill_core.bus.service import Context
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import BackfillRequested, BackfillUndoRequested
from retrofill_core.contract.pipelines import PipelineAccepted, PipelineApplied, PipelineRejected, PipelineRemoved
from retrofill_core.contract.runs import RunEvent, RunPublishing, RunStarted, TaskStateChanged
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.allowed import refusal, secret_address
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.schedule import cron_of
from retrofill_core.settings import Settings
from retrofill_core.store import backfills, pipelines, planning, undo
from retrofill_core.store.pipelines import StoredPipeline


class PlannerHandler(Handler):
    def __init__(self, context: Context) -> None:
        self._context = context
        self._intervals = KnownIntervals(context.settings.max_plan_runs)
        self._timed_out = TimedOut()
        self._barrier = PipelinesBarrier(context.topic_ids)
        self._admission = Admission(context, self._intervals, self._barrier)
        self._progress = Announcer()

    def admit(self, received: Sequence[Received]) -> Mapping[str, Hold]:
        """Hold requests for pipelines not known yet, and what exceeds a step."""
        return self._admission.admit(received)

    def handle(self, tx: Transaction, received: Sequence[Received]) -> None:
        """Apply pipelines and answer requests and commands.

        Schedules checks only of the backfills that ended runs leave something to decide about.
        """
        for one in received:
            if one.record.topic == Topic.PIPELINES:
                _apply_pipeline(tx, one, self._context.settings)
        self._answer(tx, [one for one in received if one.record.topic == Topic.BACKFILL_REQUESTS])
        of_runs = [one for one in received if one.record.topic == Topic.RUN_EVENTS]
        ended = {id for one in of_runs for id in _ended(one)}
        changed = {one.key for one in of_runs if not isinstance(one.message, TaskStateChanged)}
        if changed and self._progress.changed(tx.partition, changed):
            tx.schedule_check(PROGRESS, PROGRESS_SECONDS)
        for id in backfills.to_be_decided(tx.conn, sorted(ended)) if ended else ():
            tx.schedule_check(id)

    def _answer(self, tx: Transaction, received: Sequence[Received]) -> None:
        requests = [one for one in received if isinstance(one.message, BackfillRequested | BackfillUndoRequested)]
        asked = [one.message for one in requests if isinstance(one.message, BackfillRequested)]
        undoes = {one.message.undoes for one in requests if isinstance(one.message, BackfillUndoRequested)}
        stored = pipelines.find(tx.conn, {body.pipeline for body in asked}) if asked else {}
        undone = undo.find(tx.conn, undoes) if undoes else {}
        numbers = [each.no for each in stored.values()] + [each.pipeline_no for each in undone.values()]
        planning.lock_pipelines(tx.conn, numbers)
        if len(requests) > 1:
            self._check_known(asked, stored)
        known = dict(backfills.outcomes(tx.conn, {one.key for one in requests})) if requests else {}
        settings, partitions = self._context.settings, self._context.partitions
        for one in received:
            key, times = one.key, self._timed_out.times(one.key)
            match one.message:
                case BackfillRequested(pipeline=name) as body:
                    request = Request(key, body, one.record, times)
                    with self._timed_out.counted(key, alone=len(received) == 1):
                        known[key] = answer_request(
                            tx, request, known, stored.get(name), self._intervals, settings, partitions
                        )
                case BackfillUndoRequested(undoes=id) as body:
                    undoing = Request(key, body, one.record, times)
                    with self._timed_out.counted(key, alone=len(received) == 1):
                        known[key] = answer_undo(tx, undoing, known, undone.get(id), settings, partitions)
                case other if isinstance(other, commands.COMMANDS):
                    commands.handle_command(tx, one, other, partitions)
                case other:
                    raise _wrong_topic(one, other)

    def _check_known(self, asked: Sequence[BackfillRequested], stored: Mapping[str, StoredPipeline]) -> None:
        """Raise ``Conflict`` if a pipeline was changed since: in the transaction, the intervals of one request are
        computed at most.
        """
        for body in asked:
            if body.pipeline in stored and not self._intervals.has(stored[body.pipeline], body):
                raise Conflict(f"pipeline {body.pipeline!r} was changed while its intervals were computed")

    def check(self, tx: Transaction, keys: Sequence[str]) -> None:
        """Check backfills. One statement finds those to decide on, and only they are locked."""
        if ALL_ACTIVE in keys:
            active = backfills.active(tx.conn, tx.partition)
            check_all_active(tx, ALL_ACTIVE, [each.id for each in active])
            # Only the announcements compare core-hours, and their row may have been locked.
            limited = [each.id for each in active if each.budget_core_hours is not None]
            if self._progress.changed(tx.partition, limited):
                tx.schedule_check(PROGRESS, PROGRESS_SECONDS)
            return
        if PROGRESS in keys:
            for id in self._progress.check(tx):
                endings.check(tx, id, self._context.partitions)
            return
        for key in backfills.to_be_decided(tx.conn, keys):
            endings.check(tx, key, self._context.partitions)

    def group(self, keys: Sequence[str]) -> Sequence[Sequence[str]]:
        """All in one transaction: few backfills end per check, and locked rows are skipped."""
        alone = [key for key in keys if key in (ALL_ACTIVE, PROGRESS)]
        ids = [key for key in keys if key not in alone]
        return [*([key] for key in alone), *([ids] if ids else [])]

    def taken(self, conn: Connection, partition: int) -> Mapping[str, float]:
        """All active backfills of the shard."""
        active = backfills.active_of_shard(conn, partition)
        self._progress.changed(partition, active)
        return {ALL_ACTIVE: EVERY_SECONDS, PROGRESS: PROGRESS_SECONDS} | dict.fromkeys(active, 0.0)

    def lost(self, partition: int) -> None:
        """Forget the requests that waited, and what would be announced."""
        self._barrier.forget(partition)
        self._progress.forget(partition)


def _apply_pipeline(tx: Transaction, one: Received, settings: Settings) -> None:
    """Store or remove a pipeline's definition and reply."""
    if one.misplaced:
        pipelines.expect_copy(tx.conn, one.ce_id, one.record.value)
    elif pipelines.is_copy(tx.conn, one.ce_id, one.record.value):
        return
    match one.message:
        case None:
            pipelines.remove(tx.conn, one.key)
            tx.emit(Topic.PIPELINE_EVENTS, one.key, PipelineRemoved(pipeline=one.key), reply_to=one.record)
        case PipelineApplied(pipeline=definition) if definition.name != one.key:
            answer = PipelineRejected(
                pipeline=one.key, message=f"the key {one.key!r} differs from the pipeline's name {definition.name!r}"
            )
            tx.emit(Topic.PIPELINE_EVENTS, one.key, answer, reply_to=one.record)
        case PipelineApplied(pipeline=definition) if (
            message := refusal(definition, settings.spark_conf_allow, settings.script_allow)
            or secret_address(definition)
        ) is not None:
            answer = PipelineRejected(pipeline=one.key, message=message)
            tx.emit(Topic.PIPELINE_EVENTS, one.key, answer, reply_to=one.record)
        case PipelineApplied(pipeline=definition):
            before = pipelines.schedule_of(tx.conn, one.key)
            changed = pipelines.put(tx.conn, definition)
            accepted = PipelineAccepted(pipeline=one.key, changed=changed, **_replaced_schedule(before, definition))
            tx.emit(Topic.PIPELINE_EVENTS, one.key, accepted, reply_to=one.record)
        case other:
            raise _wrong_topic(one, other)


def _replaced_schedule(before: tuple[str, str] | None, definition: PipelineDefinition) -> dict[str, str]:
    """The schedule and time zone before, if the definition has others."""
    if before is None or (cron_of(before[0]), before[1]) == (cron_of(definition.schedule), definition.timezone):
        return {}
    return {"schedule_before": before[0], "timezone_before": before[1]}


def _ended(one: Received) -> Sequence[str]:
    """The backfill that a run's event concerns, unless the run goes on."""
    match one.message:
        case RunStarted() | RunPublishing() | TaskStateChanged():
            return ()
        case RunEvent(backfill_id=id):
            return (id,)
        case other:
            raise _wrong_topic(one, other)


def _wrong_topic(one: Received, message: object) -> Poison:
    return Poison(f"a {type(message).__name__} does not belong on {one.record.topic}")
