"""Mutations of budgets and of announced progress."""

from __future__ import annotations

from typing import Any

import backfill_planner.commands
import backfill_planner.handler
import backfill_planner.progress
from backfill_planner import endings
from backfill_planner.decide import Pause, answer_command, judge
from retrofill_core.contract.backfills import BackfillPaused
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import used_up
from retrofill_core.store import backfills, progress
from tests.simulation.mutations.patch import Patch


def budgets_pause_again(patch: Patch) -> None:
    """A used-up budget is announced at each check, also if the backfill is paused already."""

    def always(backfill: Any, runs: Any, reached: str | None) -> Any:
        if reached is not None and runs.any_unfinished and backfill.state in ("running", "paused"):
            return Pause("budget", reached)
        return judge(backfill, runs, reached)

    pause = endings._pause

    def only_say(tx: Any, row: Any, cause: Any, why: str | None = None) -> None:
        if row.state == "running":
            pause(tx, row, cause, why)
        else:
            event = BackfillPaused(backfill_id=row.id, pipeline=row.pipeline, cause=cause, message=why)
            tx.emit(Topic.BACKFILL_EVENTS, row.id, event)

    patch(backfills, "to_be_decided", backfills.still_active)
    patch(endings, "judge", always)
    patch(endings, "_pause", only_say)


def resumes_with_a_used_up_budget(patch: Patch) -> None:
    """A resume does not look at the budget."""

    def hopeful(command: Any, state: Any, reached: Any = None, approved: int | None = None) -> Any:
        return answer_command(command, state, None, approved)

    patch(backfill_planner.commands, "answer_command", hopeful)


def pauses_before_the_budget_is_used_up(patch: Patch) -> None:
    """The next failed run would use it up."""

    def early(budget: Any, spent: Any) -> str | None:
        hasty = type(spent)(spent.failed_runs + 1, spent.core_seconds, spent.now)
        return used_up(budget, hasty) if spent.failed_runs or budget.failed_runs == 1 else None

    patch(backfills, "to_be_decided", backfills.still_active)
    patch(backfills, "used_up", early)


def progress_is_announced_again(patch: Patch) -> None:
    """What was announced is not recorded."""
    patch(progress, "put", lambda conn, new: None)


def progress_at_every_change(patch: Patch) -> None:
    """Progress does not wait for five seconds."""
    patch(backfill_planner.progress, "EVERY_SECONDS", 0.5)
    patch(backfill_planner.handler, "PROGRESS_SECONDS", 0.5)
