"""Mutations of budgets and of announced progress."""

from __future__ import annotations

from typing import Any

import backfill_planner.commands
import backfill_planner.handler
import backfill_planner.progress
from backfill_planner import endings
from backfill_planner.decide import Review
from retrofill_core.store import backfills, budgets, progress
from tests.simulation.mutations.patch import Patch


def budgets_pause_again(patch: Patch) -> None:
    """A used-up budget is announced at each check, also if the backfill is paused already."""
    judge = endings.judge

    def always(snapshot: Any) -> Any:
        if snapshot.used_up is not None and snapshot.any_unfinished and snapshot.state in ("running", "paused"):
            return endings.PauseForBudget(snapshot.used_up)
        return judge(snapshot)

    pause = endings._pause

    def only_say(tx: Any, row: Any, cause: Any, why: str | None = None) -> None:
        if row["state"] == "running":
            pause(tx, row, cause, why)
        else:
            event = endings.BackfillPaused(backfill_id=row["id"], pipeline=row["pipeline"], cause=cause, message=why)
            tx.emit(endings.Topic.BACKFILL_EVENTS, row["id"], event)

    patch(backfills, "to_be_decided", backfills.still_active)
    patch(endings, "judge", always)
    patch(endings, "_pause", only_say)


def resumes_with_a_used_up_budget(patch: Patch) -> None:
    """A resume does not look at the budget."""
    answer = backfill_planner.commands.answer_command

    def hopeful(command: Any, state: Any, used_up: Any = None, review: Any = Review.NONE, approvals: int = 0) -> Any:
        return answer(command, state, None, review, approvals)

    patch(backfill_planner.commands, "answer_command", hopeful)


def pauses_before_the_budget_is_used_up(patch: Patch) -> None:
    """The next failed run would use it up."""
    used_up = budgets.used_up

    def early(budget: Any, spent: Any) -> str | None:
        hasty = type(spent)(spent.failed_runs + 1, spent.core_seconds, spent.now)
        return used_up(budget, hasty) if spent.failed_runs or budget.failed_runs == 1 else None

    patch(backfills, "to_be_decided", backfills.still_active)
    patch(budgets, "used_up", early)


def progress_is_announced_again(patch: Patch) -> None:
    """What was announced is not recorded."""
    patch(progress, "put", lambda conn, new: None)


def progress_at_every_change(patch: Patch) -> None:
    """Progress does not wait for five seconds."""
    patch(backfill_planner.progress, "EVERY_SECONDS", 0.5)
    patch(backfill_planner.handler, "PROGRESS_SECONDS", 0.5)
