"""What Retrofill is measured with beside its peers: the same three pipelines, and the same callback."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from retrofill import Deadline, Pipeline, Reference

SECONDS = float(os.environ["PEER_DEADLINE_SECONDS"])

nothing = Pipeline("nothing", schedule="@daily", start="2000-01-01", max_active_runs=64)
first = Pipeline("first", schedule="@daily", start="2000-01-01")
late = Pipeline(
    "late",
    schedule="@daily",
    start="2000-01-01",
    deadlines=[Deadline("late", Reference.RUN_QUEUED_AT, timedelta(seconds=SECONDS), callback="note_the_time")],
)


@nothing.task
def only(run: Any) -> None:
    """Nothing."""


@first.task
def notes_its_first_line(run: Any) -> None:  # noqa: ARG001 - what tasks are given
    """Says when the user's code began."""
    Path(os.environ["PEER_NOTES"]).write_text(repr(time.time()))


@late.task
def outlasts_its_deadline(run: Any) -> None:  # noqa: ARG001 - what tasks are given
    """Runs until the deadline is past: a measurement needs it to be missed."""
    time.sleep(SECONDS * 2)


def note_the_time(context: dict[str, Any], **_: Any) -> None:  # noqa: ARG001 - what callbacks are given
    """A line with the time, in seconds since the epoch."""
    with Path(os.environ["PEER_NOTES"]).open("a") as notes:
        notes.write(f"{time.time()}\n")
