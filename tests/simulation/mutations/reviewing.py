"""Mutations of reviews."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import backfill_planner.endings
import run_starter.claims.cancelling
import run_starter.claims.checks
import run_starter.host.launching
import run_starter.reports.decide
import run_starter.reports.handling
from retrofill_core.store import reviews
from run_starter.reports.steps import HoldAgain
from tests.simulation.mutations.patch import Patch


def publishes_before_the_review(patch: Patch) -> None:
    """Staged output is accepted at once."""
    patch(run_starter.reports.handling, "_approvals", lambda tx, rows, definitions: {})


def staged_runs_are_claimed_before_the_review(patch: Patch) -> None:
    """A staged run gets a publisher, whatever it waits for."""
    patch(run_starter.claims.checks, "reviews", _with(reviews, publishes_below=lambda row: 99))


def discards_only_what_is_queued(patch: Patch) -> None:
    """A cancel leaves what was staged for a review as it is."""
    patch(run_starter.claims.cancelling, "reviews", _with(reviews, approvals_of=lambda row: None))


def discards_what_was_approved(patch: Patch) -> None:
    """A cancel ends staged runs, also those that wait for a publisher after their approval."""
    patch(run_starter.claims.cancelling, "reviews", _with(reviews, approvals_of=lambda row: 0))


def reviews_what_is_not_finished(patch: Patch) -> None:
    """A review begins with the first staged run."""
    judge = backfill_planner.endings.judge
    patch(backfill_planner.endings, "judge", lambda snapshot: judge(replace(snapshot, any_open=False)))


def no_review_begins(patch: Patch) -> None:
    """Only backfills without unfinished runs are looked at."""
    judge = backfill_planner.endings.judge
    patch(backfill_planner.endings, "judge", lambda snapshot: judge(replace(snapshot, any_open=True)))


def publishes_over_changes(patch: Patch) -> None:
    """A publisher does not know what was approved."""
    published = run_starter.host.launching._published
    patch(
        run_starter.host.launching, "_published", lambda row, forced: replace(published(row, forced=forced), bases=())
    )


def approves_changes_by_itself(patch: Patch) -> None:
    """What somebody changed is published as soon as that is known."""
    patch(run_starter.reports.decide, "HoldAgain", lambda review, *others: HoldAgain(review - 1, *others))


class _With:
    """A module with some of its functions exchanged."""

    def __init__(self, module: Any, instead: dict[str, Any]) -> None:
        self._module = module
        self.__dict__ |= instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _with(module: Any, **instead: Any) -> _With:
    return _With(module, instead)
