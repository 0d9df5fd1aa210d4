"""Mutations of cancels of single runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

import run_starter.reports.handling
from backfill_planner import commands as planner
from retrofill_core.domain.run import RunState
from retrofill_core.store import backfills, run_commands
from retrofill_core.store.run_commands import Found
from retrofill_core.store.sql import database_now, in_state
from retrofill_core.store.tables import run, run_cancel
from tests.simulation.mutations.patch import Patch, decided_with


def cancels_whole_batches(patch: Patch) -> None:
    """The cancel of one run ends all runs of its attempt."""

    def all_of_them(tx: Any, rows: Any) -> set[int]:
        ended = {id for id, row in rows.attempts.items() if row.release_requested}
        return {id for id, row in rows.runs.items() if row.attempt_id in ended}

    patch(run_starter.reports.handling, "_cancelled", all_of_them)


def cancels_accepted_runs(patch: Patch) -> None:
    """A run is cancelled though its output was accepted."""
    why_left, queued = planner._why_left, run_commands.queued_to_cancel

    def as_if_running(found: Found) -> str | None:
        accepted = (RunState.PUBLISHING, RunState.STAGED)
        return why_left(replace(found, state="running") if found.state in accepted else found)

    def accepted_too(conn: Any, backfill_ids: Any, most: int) -> Any:
        asked = select(run_cancel.c.run_id).where(run_cancel.c.run_id == run.c.id)
        conn.execute(
            update(run)
            .where(in_state(run, RunState.PUBLISHING, RunState.STAGED), asked.exists())
            .values(state="cancelled", finished_at=database_now(conn))
        )
        return queued(conn, backfill_ids, most)

    patch(planner, "_why_left", as_if_running)
    patch(run_commands, "queued_to_cancel", accepted_too)


def starts_cancelled_runs(patch: Patch) -> None:
    """Only live runs are cancelled."""
    patch(run_commands, "queued_to_cancel", lambda conn, backfill_ids, most: [])


def ends_as_if_none_was_cancelled(patch: Patch) -> None:
    """A backfill succeeds though a run was cancelled."""
    progress = backfills.progress
    patch(backfills, "progress", lambda conn, id: replace(progress(conn, id), any_run_cancelled=False))


def released_runs_are_lost(patch: Patch) -> None:
    """The end of an attempt for the sake of one run is held against the others."""
    decided_with(patch, attempt={"release_requested": False})
