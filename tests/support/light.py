"""Backfills of trivial pipelines, run by real drivers without Spark."""

from __future__ import annotations

from pathlib import Path

from retrofill_core.contract.topics import Topic
from tests.support.installation import Installation
from tests.support.loading import definition_of, load_pipelines

_CODE = """
import time
from retrofill import Pipeline

{name} = Pipeline("{name}", schedule="@daily", start="2000-01-01", max_active_runs={limit}, batch_size={batch})

@{name}.task
def only(run):
    began = time.time()
    time.sleep({seconds})
    with open({notes!r}, "a") as notes:
        notes.write(f"{{began}} {{time.time()}}\\n")
"""


def apply_trivial(made: Installation, name: str, limit: int, batch: int = 1, seconds: float = 0.0) -> Path:
    """Apply a pipeline whose only task waits, and notes when it began and ended; returns the notes' file."""
    notes, file = made.settings.home / f"{name}.notes", made.settings.home / f"{name}.py"
    file.write_text(_CODE.format(name=name, limit=limit, batch=batch, seconds=seconds, notes=str(notes)))
    ((pipeline, location),) = load_pipelines(file)
    made.apply(definition_of(pipeline, location))
    return notes


def backfill(made: Installation, pipeline: str, first: str, last: str, id: str) -> None:
    """Request a backfill and wait until it has succeeded, without a query that costs commits."""
    made.request(pipeline, first, last, id=id)
    made.wait_event(
        Topic.BACKFILL_EVENTS,
        lambda event: event.key == id and event.body["type"] == "BackfillSucceeded",
        f"{id} has succeeded",
        seconds=300,
    )
