"""Mutations of retries, and of commands that come twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import exists, select

import deadline_watcher.decide
from backfill_planner import commands as planner
from retrofill_core.domain.deadline import Watched
from retrofill_core.domain.run import RunState
from retrofill_core.store import backfills
from retrofill_core.store.sql import in_state
from retrofill_core.store.tables import run
from tests.simulation.mutations.patch import Patch


def retries_ended_backfills(patch: Patch) -> None:
    """Runs are retried whatever became of their backfill."""
    decide = planner._retries

    def as_if_running(tx: Any, row: Any, command: Any) -> Any:
        return decide(tx, replace(row, state="running"), command)

    patch(planner, "_retries", as_if_running)


def replaced_runs_count(patch: Patch) -> None:
    """A backfill fails though its failed run was retried and succeeded."""
    progress = backfills.progress

    def with_replaced(conn: Any, id: str) -> Any:
        failed = exists().where(run.c.backfill_id == id, in_state(run, RunState.FAILED))
        return replace(progress(conn, id), any_failed=conn.execute(select(failed)).scalar_one())

    patch(backfills, "progress", with_replaced)


def commands_are_carried_out_again(patch: Patch) -> None:
    """A repeated command is decided on again."""
    patch(backfills, "command_outcome", lambda conn, id, ce_id: None)
    patch(backfills, "record_command", lambda conn, id, ce_id, outcome: None)


def new_runs_without_deadlines(patch: Patch) -> None:
    """The run that replaces another has no deadlines."""
    patch(planner, "alerts_counting_from", lambda alerts, *references: [])


def deadlines_of_replaced_runs_fire(patch: Patch) -> None:
    """A failure fires although the run was retried."""

    def as_if_current(*facts: Any) -> Watched:
        return replace(Watched(*facts), superseded=False)

    patch(deadline_watcher.decide, "Watched", as_if_current)
