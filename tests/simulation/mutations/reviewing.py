"""Mutations of reviews."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import backfill_planner.endings
import retrofill_core.store.backfills
import run_starter.claims.checks
import run_starter.host.launching
import run_starter.reports.decide
import run_starter.reports.handling
from backfill_planner.decide import judge
from retrofill_core.store.rows import Backfill
from run_starter.claims.cancelling import cancel
from run_starter.reports.steps import HoldAgain
from tests.simulation.mutations.patch import Patch


def publishes_before_the_review(patch: Patch) -> None:
    """Staged output is accepted at once."""
    patch(run_starter.reports.handling, "_approvals", lambda tx, rows, definitions: {})


def staged_runs_are_claimed_before_the_review(patch: Patch) -> None:
    """A staged run gets a publisher, whatever it waits for."""
    patch(Backfill, "publishes_below", 99)


def discards_only_what_is_queued(patch: Patch) -> None:
    """A cancel leaves what was staged for a review as it is."""
    _cancel_as_if(patch, review=False)


def discards_what_was_approved(patch: Patch) -> None:
    """A cancel ends staged runs, also those that wait for a publisher after their approval."""
    _cancel_as_if(patch, review=True, approvals=0)


def reviews_what_is_not_finished(patch: Patch) -> None:
    """A review begins with the first staged run."""
    _judge_as_if(patch, any_open=False)


def no_review_begins(patch: Patch) -> None:
    """Only backfills without unfinished runs are looked at."""
    _judge_as_if(patch, any_open=True)


def publishes_over_changes(patch: Patch) -> None:
    """A publisher does not know what was approved."""
    published = run_starter.host.launching._published
    patch(
        run_starter.host.launching, "_published", lambda row, forced: replace(published(row, forced=forced), bases=())
    )


def approves_changes_by_itself(patch: Patch) -> None:
    """What somebody changed is published as soon as that is known."""
    patch(run_starter.reports.decide, "HoldAgain", lambda review, *others: HoldAgain(review - 1, *others))


def approves_what_was_not_named(patch: Patch) -> None:
    """A request that names some days publishes all of them."""
    patch(retrofill_core.store.backfills, "put_off", lambda conn, id, but, review: None)


def _cancel_as_if(patch: Patch, **changed: Any) -> None:
    patch(run_starter.claims.checks, "cancel", lambda tx, row: cancel(tx, replace(row, **changed)))


def _judge_as_if(patch: Patch, **runs: bool) -> None:
    patch(
        backfill_planner.endings,
        "judge",
        lambda backfill, found, used_up: judge(backfill, replace(found, **runs), used_up),
    )
