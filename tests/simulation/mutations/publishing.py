"""Mutations of publishers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import run_starter.claims.publishing
import run_starter.reports.decide
from retrofill_core.contract.runs import RunReported
from retrofill_core.domain.run import RunState
from retrofill_core.store import launches
from run_starter.reports.steps import AwaitPublisher, End
from tests.simulation.mutations.patch import Patch


def lost_publishers_fail_their_run(patch: Patch) -> None:
    """Accepted output fails with its driver."""
    leave = run_starter.reports.decide.Fold._leave

    def as_if_not_accepted(fold: Any, row: Any, attempt: Any, outcome: Any, error: Any, *, shared: bool) -> None:
        leave(fold, row, attempt, outcome, error, shared=shared)
        step = fold.outcome.runs[row.id][-1]
        if isinstance(step, AwaitPublisher) and step.suspect:
            fold._step(row, End(RunState.FAILED, error, step.losses, step.counted), RunState.FAILED)
            fold.outcome.runs[row.id].remove(step)

    patch(run_starter.reports.decide.Fold, "_leave", as_if_not_accepted)


def conflicts_fail_their_run(patch: Patch) -> None:
    """What cannot be published now is a failure."""
    apply = run_starter.reports.decide.Fold._apply

    def as_a_failure(fold: Any, report: Any) -> Any:
        if report.type == "RunPublicationPutOff":
            report = RunReported(**report.model_dump(exclude={"type"}), state="failed")
        return apply(fold, report)

    patch(run_starter.reports.decide.Fold, "_apply", as_a_failure)


def publishers_know_only_their_own_runs(patch: Patch) -> None:
    """Of the other runs that the same attempt staged, a publisher is not told."""
    patch(launches, "accepted_of", lambda conn, attempt_ids: {id: [] for id in attempt_ids})


def publishers_do_not_pause(patch: Patch) -> None:
    """The next publisher begins at once."""
    patch(run_starter.reports.decide, "_pause", lambda row: 0.0)


def lost_publishers_take_others_along(patch: Patch) -> None:
    """A publisher takes runs with which one was lost together with others."""
    fits = run_starter.claims.publishing._fits

    def fits_always(part: Any, other: Any, size: int) -> bool:
        forgotten = [replace(each, runs=[replace(run, lost_at=None) for run in each.runs]) for each in (part, other)]
        return fits(forgotten[0], forgotten[1], size)

    patch(run_starter.claims.publishing, "_fits", fits_always)
