"""The output equals a plain computation and belongs to the accepted attempt."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.history import History, Row
from tests.chaos.work import content, label


def the_output_is_right(history: History) -> Iterator[str]:
    """For each interval, the output of the last successful run.

    Later failed runs changed nothing.
    """
    pipelines = {row["id"]: row["pipeline"] for row in history.rows("backfill")}
    last: dict[tuple[str, str], Row] = {}
    for run in sorted(history.rows("run"), key=lambda run: str(run["finished_at"])):
        if run["state"] == "succeeded":
            last[pipelines.get(run["backfill_id"], "?"), label(run["interval_start"])] = run
    for (pipeline, day), run in last.items():
        expected = content(pipeline, day, run["backfill_id"], run["accepted_attempt"])
        found = history.outputs.get((pipeline, day))
        if found != expected:
            yield f"{pipeline} {day} holds {found} instead of {expected}"


def the_output_is_of_the_accepted_attempt(history: History) -> Iterator[str]:
    """The marker beside each output names the attempt that was accepted."""
    accepted = {row["id"]: row["accepted_attempt"] for row in history.rows("run")}
    for place in history.outputs:
        marker = history.markers.get(place, {})
        if marker.get("attempt_id") is None or marker["attempt_id"] != accepted.get(marker["run_id"]):
            yield f"{place} was published from {marker}, accepted was {accepted.get(marker.get('run_id', -1))}"


def no_output_without_work(history: History) -> Iterator[str]:
    """Every output was produced by an attempt."""
    worked = {(note["pipeline"], day) for note in history.notes for day in note["days"]}
    for pipeline, day in history.outputs.keys() - worked:
        yield f"{pipeline} {day} has output and nobody was at work"


PROMISES = (the_output_is_right, the_output_is_of_the_accepted_attempt, no_output_without_work)
