"""Mutations of what undoes a backfill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backfill_planner import endings
from backfill_planner.endings import call_for_end
from retrofill_core.store import undo
from tests.simulation.mutations.patch import Patch


def undoes_what_was_published_again(patch: Patch) -> None:
    """An undo gets a run for each interval that the undone backfill published, whatever was published there since."""
    patch(undo, "is_replaced", lambda mine, theirs: False)


def undone_runs_count(patch: Patch) -> None:
    """A run that was undone is still a succeeded one."""
    patch(undo, "mark_undone", lambda conn, run_ids: None)


def undos_are_announced_as_success(patch: Patch) -> None:
    """The end of an undo calls what the end of a backfill does."""

    def always(tx: Any, row: Any, state: Any, event: Any, now: Any, partitions: Any) -> None:
        call_for_end(tx, replace(row, undoes=None), state, event, now, partitions)

    patch(endings, "call_for_end", always)
