"""Mutations of the run-starter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import false, select, update

import run_starter.claims.batches
import run_starter.claims.checks
import run_starter.reports.decide
import run_starter.reports.handling
import run_starter.reports.marking
import run_starter.reports.outcomes
from retrofill.states import AttemptOutcome
from retrofill_core.contract.runs import RunReport
from retrofill_core.domain import estimate
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, claims, places
from retrofill_core.store.sql import database_now
from retrofill_core.store.tables import attempt, run
from run_starter.claims.batches import batches
from run_starter.host.hosting import DriverHost
from run_starter.reports.decide import Fold
from run_starter.reports.leases import Leases
from run_starter.reports.steps import End, Requeue, Split, losses_of
from tests.simulation import primitives
from tests.simulation.memory.engine import EPOCH
from tests.simulation.mutations.patch import Patch, decided_with


def writes_at_once(patch: Patch) -> None:
    """Claims do not look who writes the same now."""
    patch(places, "held", lambda conn, names: [])


def no_attempt_guard(patch: Patch) -> None:
    """A report applies to the live attempt that has its run now, whichever attempt it is about."""
    gather = run_starter.reports.handling.gather

    def gather_any(tx: Any, reports: list[Any]) -> Any:
        reports[:] = [_of_the_live_attempt(tx.conn, report) for report in reports]
        return gather(tx, reports)

    patch(run_starter.reports.handling, "gather", gather_any)


def _of_the_live_attempt(conn: Any, report: Any) -> Any:
    about = select(attempt.c.position).where(attempt.c.id == report.attempt_id)
    if isinstance(report, RunReport):
        about = select(run.c.position).where(run.c.id == report.run_id)
    position = conn.execute(about).scalar_one_or_none()
    mine = (attempt.c.backfill_id == report.backfill_id) & attempt.c.slot.is_not(None)
    for row in conn.execute(select(attempt).where(mine)):
        if position is not None and row.position <= position < row.position + row.runs:
            return report.model_copy(update={"attempt_id": row.id})
    return report


def applications_are_mixed_up(patch: Patch) -> None:
    """Attempts that begin at once get the Spark application of the first of them."""
    starts = run_starter.reports.outcomes.Apply.starts

    def first_for_all(self: Any) -> None:
        known = [spark for spark in self.outcome.began.values() if spark is not None]
        self.outcome.began.update(dict.fromkeys(self.outcome.began, known[0] if known else None))
        starts(self)

    patch(run_starter.reports.outcomes.Apply, "starts", first_for_all)


def leases_by_the_clock(patch: Patch) -> None:
    """A lease ends by the database clock alone, even with unread heartbeats."""

    def check(self: Any, tx: Any) -> None:
        self._expire(tx, database_now(tx.conn))
        tx.schedule_check("leases", 0.5)

    patch(Leases, "check", check)
    _without_own_clock(patch)


def leases_by_the_owners_settings(patch: Patch) -> None:
    """A heartbeat extends a lease by the owner's setting instead of the attempt's."""
    extend_leases = attempts.extend_leases

    def extend(conn: Any, until: Mapping[int, Any]) -> None:
        seconds = _process().settings.lease_seconds
        extend_leases(conn, dict.fromkeys(until, database_now(conn) + timedelta(seconds=seconds)))

    patch(attempts, "extend_leases", extend)
    _without_own_clock(patch)


def batches_keep_their_seats(patch: Patch) -> None:
    """A batch goes on to its end, whoever waits."""
    patch(attempts, "GIVES_WAY", false())
    patch(attempts, "_LEASE_LEFT", attempts._lease_left())


def begins_without_asking(patch: Patch) -> None:
    """A driver begins without checking that its attempt is still the live one."""
    patch(DriverHost, "may_begin", lambda self, launch, run_id: launch.lease_seconds)


def claims_beyond_limits(patch: Patch) -> None:
    """A pipeline may have one live run more than its limit."""
    lock_pipelines = claims.lock_pipelines

    def generous(conn: Any, numbers: Any) -> Any:
        limits, now = lock_pipelines(conn, numbers)
        return {no: limit + 1 for no, limit in limits.items()}, now

    patch(claims, "lock_pipelines", generous)


def starts_the_last_first(patch: Patch) -> None:
    """Queued runs are started in no particular order."""
    next_queued = claims.next_queued

    def any_order(conn: Any, wanted: Mapping[str, int]) -> Any:
        found = next_queued(conn, dict.fromkeys(wanted, 1000))
        return {id: replace(each, runs=each.runs[::-1][: wanted[id]]) for id, each in found.items()}

    patch(claims, "next_queued", any_order)


def claims_of_paused_backfills(patch: Patch) -> None:
    """A backfill keeps starting runs although a failed run should stop it."""
    patch(claims, "failed_since_resume", lambda of=None: false())
    patch(claims, "_CLAIMANTS", claims._claimants())


def batches_grow_without_bound(patch: Patch) -> None:
    """A chosen size is as large as the estimate says, however far it is from what was tried."""
    patch(estimate, "STEP", 1000)


def loss_by_assignment(patch: Patch) -> None:
    """The runs of a lost attempt are queued again from any state."""
    end_attempt = Fold._end_attempt

    def end(
        self: Any, row: Any, outcome: AttemptOutcome, error: Any, begun: Any, cost: Any = None, **more: Any
    ) -> None:
        mine = [one for one in self._runs.values() if one.attempt_id == row.id]
        end_attempt(self, row, outcome, error, begun, cost, **more)
        if outcome != AttemptOutcome.DONE:
            for one in mine:
                self.outcome.runs[one.id] = [Requeue(error, (), False)]

    def move(conn: Any, to: str, rows: Sequence[Any], *_: Any, **__: Any) -> int:
        for row in rows:
            conn.execute(update(run).where(run.c.id == row.id).values(state=str(to), finished_at=None))
        return len(rows)

    def move_lost(self: Any, to: Any, lost: Sequence[Any], more: Sequence[Any]) -> None:
        move(self.tx.conn, to, [row for row, _ in lost])

    patch(Fold, "_end_attempt", end)
    patch(run_starter.reports.outcomes.Apply, "_move_lost", move_lost)


def begun_is_forgotten(patch: Patch) -> None:
    """A silent attempt is taken for one that began nothing."""

    def lose(self: Any, attempt_id: int, error: Any, **_: Any) -> Any:
        self._end_attempt(self._attempts[attempt_id], AttemptOutcome.LOST, error, None)
        return self.outcome

    patch(Fold, "lose", lose)


def ranges_are_retried_whole(patch: Patch) -> None:
    """The runs of a range that failed are tried in one of the same size again."""

    def whole(runs: Sequence[Any], limit: int, most: int) -> Any:
        return batches([replace(row, range_limit=None) for row in runs], limit, most)

    patch(run_starter.claims.checks, "batches", whole)


def ranges_fail_as_one(patch: Patch) -> None:
    """All runs of a range that failed fail with its error."""
    step = Fold._step

    def fail(self: Any, row: Any, what: Any, to: Any) -> None:
        if isinstance(what, Split):
            what, to = End(RunState.FAILED, what.error), RunState.FAILED
        step(self, row, what, to)

    patch(Fold, "_step", fail)


def first_losses_count(patch: Patch) -> None:
    """Every loss counts, not only those of a run that is retried alone."""
    decided_with(patch, run={"lost_at": EPOCH})


def servers_lost_make_suspects(patch: Patch) -> None:
    """What was lost with a whole Spark server is suspected at once."""
    end_attempt = Fold._end_attempt

    def end(self: Any, *args: Any, shared: bool = False) -> None:
        end_attempt(self, *args)

    patch(Fold, "_end_attempt", end)


def servers_lost_are_always_excused(patch: Patch) -> None:
    """However often a run is lost with a whole Spark server, it is not suspected."""

    def forgotten(stored: Mapping[str, Any]) -> Any:
        return tuple(replace(loss, shared=False) for loss in losses_of(stored))

    patch(run_starter.reports.decide, "losses_of", forgotten)


def suspects_at_once(patch: Patch) -> None:
    """Suspects are retried alone, but several at a time on one Spark server."""
    for module in (run_starter.claims.checks, run_starter.claims.batches):
        patch(module, "server_of", lambda definition: None)


def suspects_keep_their_place(patch: Patch) -> None:
    """On one Spark server, the suspects of a backfill are retried one after the other, while those of others wait."""
    patch(claims, "_turn_of_another", false)
    patch(claims, "_CLAIMANTS", claims._claimants())
    patch(claims, "_NEXT_SUSPECTS", claims._next_suspects())


def dead_heartbeats_renew_nothing(patch: Patch) -> None:
    """A heartbeat that is a dead letter has no effect, though its driver counts on it."""
    patch(run_starter.reports.marking, "_renew", lambda tx, attempt: {})


def _without_own_clock(patch: Patch) -> None:
    """Treat every lease as over by the owner's own clock."""
    patch(Leases, "_remaining", lambda self, shard, attempt_id, until, seconds: 0.0)


def _process() -> Any:
    return primitives.scheduler().me().process
