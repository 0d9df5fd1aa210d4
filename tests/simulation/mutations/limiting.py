"""Mutations of time limits."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import run_starter.reports.leases
import run_starter.reports.marking
import run_starter.reports.outcomes
from retrofill_core.store import launches, runs
from retrofill_core.store.sql import database_now
from run_starter.reports.leases import Leases
from tests.simulation.mutations.patch import Patch, decided_with


def late_runs_go_on(patch: Patch) -> None:
    """Nobody looks for runs that timed out."""
    patch(run_starter.reports.leases, "interrupt", lambda tx, definitions, moment: False)


def times_out_by_the_clock(patch: Patch) -> None:
    """A run times out though the report of its end was not read yet."""
    check = Leases.check

    def at_once(self: Any, tx: Any) -> None:
        run_starter.reports.marking.interrupt(tx, self.definitions, database_now(tx.conn))
        check(self, tx)

    patch(Leases, "check", at_once)


def fails_before_its_driver_has_ended(patch: Patch) -> None:
    """A run that timed out fails at once, though its driver still works."""
    mark = runs.mark_failing

    def end(conn: Any, errors: Any) -> None:
        mark(conn, errors)
        rows = [{"id": id} for id in errors]
        values = {"finished_at": database_now(conn)}
        runs.move(conn, "failed", rows, values, from_states=["running"], guard=())

    patch(runs, "mark_failing", end)


def late_runs_are_tried_again(patch: Patch) -> None:
    """What was interrupted is queued again, like the other runs of its attempt."""
    decided_with(patch, run={"error": None})


def ranges_have_the_time_of_one_run(patch: Patch) -> None:
    """A range times out as early as a single run."""
    of_one = run_starter.reports.outcomes.times_out_at

    def once(definition: Any, attempt: Any, now: datetime) -> datetime | None:
        until = of_one(definition, attempt, now)
        return until if until is None else now + timedelta(seconds=definition.run_timeout_seconds)

    patch(run_starter.reports.outcomes, "times_out_at", once)


def tries_are_forgotten(patch: Patch) -> None:
    """A task that ends its driver each time is tried without end."""
    patch(launches, "tries_used", lambda conn, run_ids: {})
