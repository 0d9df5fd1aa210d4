"""Starts attempts: writes them and their runs, and hands them to drivers after the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from retrofill.states import EXECUTES, AttemptMode
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.faults import Conflict
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, hosts, places, runs
from retrofill_core.store.hosts import Seat
from retrofill_core.store.rows import Backfill, Run
from retrofill_core.store.sql import database_now
from retrofill_core.store.transition import Plus
from run_starter.announcing import facts, publishing
from run_starter.claims.publishing import span
from run_starter.executors import LaunchRequest
from run_starter.host.launching import Batch, Before, Launching, code_of
from run_starter.memory import LEASES_KEY
from run_starter.reports.leases import Leases


@dataclass(frozen=True)
class Wanted:
    """An attempt to start, in a slot of its backfill, one of its pipeline, and a seat.

    ``suspect_server``: the pool in which its runs are retried alone, if drivers share its Spark server.
    ``accepted_code``: of a publisher, where the code is of the attempts that staged what it publishes. ``writes``: what no
    other live attempt may write.
    """

    backfill: Backfill
    mode: AttemptMode
    runs: Sequence[Run]
    slot: int
    pipeline_slot: int
    seat: Seat
    suspect_server: str | None = None
    accepted_code: dict[str, Any] | None = None
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Starting:
    """Starts attempts: those in seats of this run-starter at once, the others by their hosts.

    ``own``: the ids of this incarnation, one for each pool once it is registered.
    """

    launching: Launching
    leases: Leases
    own: Callable[[], Collection[int]]

    def start(self, tx: Transaction, wanted: Sequence[Wanted]) -> None:
        """Start these attempts. Raises ``Conflict`` if another transaction took one of the runs."""
        if not wanted:
            return
        now = database_now(tx.conn)
        lease = self.launching.lease_seconds
        definitions = self.launching.definitions_now(tx, [each.backfill for each in wanted])
        batches = [
            Batch(each.backfill, each.mode, each.runs, _definition(each, definitions[each.backfill.id]))
            for each in wanted
        ]
        new = [_new(each, batch.definition) for each, batch in zip(wanted, batches, strict=True)]
        published = [each for each in batches if each.mode == AttemptMode.PUBLISH]
        before = Before.read(tx.conn, [each for each in batches if _is_repeated(each)], published)
        own = self.own()
        until = now + timedelta(seconds=lease)
        ids = attempts.insert_all(tx.conn, new, own, until, lease)
        if len(ids) != len(new):
            raise Conflict("a free seat was taken by another transaction")
        for id, each in zip(ids, wanted, strict=True):
            places.take(tx.conn, each.writes, id)
        claimed = list(zip(ids, batches, strict=True))
        self._move_runs(tx, claimed, now)
        crash_point("claim:written")
        launches = [
            self.launching.launch_of(id, batch, before)
            for each, (id, batch) in zip(wanted, claimed, strict=True)
            if each.seat.host_id in own
        ]
        others = {each.seat.host_id for each in wanted}.difference(own)
        tx.notify(hosts.HOST_CHANNEL, sorted(others))
        self.leases.renewed(tx.partition, dict.fromkeys(ids, until))
        tx.after_commit.append(lambda: self._launch(launches))
        tx.schedule_check(LEASES_KEY, lease)

    def _move_runs(self, tx: Transaction, claimed: Sequence[tuple[int, Batch]], now: datetime) -> None:
        """Give the runs to their attempts."""
        for modes, to, before, values in (
            (EXECUTES, RunState.STARTING, RunState.QUEUED, {}),
            ((AttemptMode.PUBLISH,), RunState.PUBLISHING, RunState.STAGED, {"publication": Plus(1)}),
        ):
            given = [
                {"id": row.id, "attempt_id": id} for id, each in claimed if each.mode in modes for row in each.runs
            ]
            if runs.move(tx.conn, to, given, values, from_states=[before], guard=()) != len(given):
                raise Conflict(f"a {before} run was changed by another transaction")
        for _, each in claimed:
            if each.mode == AttemptMode.PUBLISH:
                for row in each.runs:
                    publishing(tx, facts(row, each.backfill.pipeline, now), row.folders, row.publication + 1)

    def _launch(self, launches: Sequence[LaunchRequest]) -> None:
        metrics.RUNS_CLAIMED.inc(sum(len(each.runs) for each in launches))
        crash_point("claim:committed")
        self.launching.hand_over(launches)


def _definition(wanted: Wanted, definition: PipelineDefinition) -> PipelineDefinition:
    """The definition for an attempt. A publisher has the code, and with it the environment, of the accepted attempt."""
    if wanted.mode != AttemptMode.PUBLISH:
        return definition
    code = code_of(wanted.accepted_code)
    return definition if code is None else definition.model_copy(update={"code": code})


def _new(wanted: Wanted, definition: PipelineDefinition) -> attempts.NewAttempt:
    first, last = span(wanted.runs)
    return attempts.NewAttempt(
        wanted.backfill.id,
        wanted.backfill.pipeline_no,
        str(wanted.mode),
        first,
        last - first + 1,
        wanted.slot,
        wanted.pipeline_slot,
        definition.code.model_dump(exclude_none=True),
        wanted.seat.host_name,
        wanted.seat.host_id,
        wanted.seat.no,
        wanted.suspect_server,
    )


def _is_repeated(batch: Batch) -> bool:
    """Whether a run was part of another attempt before. Publishers need no sessions."""
    return batch.mode in EXECUTES and any(row.attempt_id is not None for row in batch.runs)
