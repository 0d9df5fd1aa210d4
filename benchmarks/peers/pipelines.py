"""The three pipelines and the callback with which Retrofill is compared to its peers."""

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
    """Does nothing."""


@first.task
def notes_its_first_line(run: Any) -> None:  # noqa: ARG001 - required task signature
    """Records when user code began."""
    Path(os.environ["PEER_NOTES"]).write_text(repr(time.time()))


@late.task
def outlasts_its_deadline(run: Any) -> None:  # noqa: ARG001 - required task signature
    """Runs past its deadline, so that the miss can be measured."""
    time.sleep(SECONDS * 2)


def note_the_time(context: dict[str, Any], **_: Any) -> None:  # noqa: ARG001 - required callback signature
    """Append the time in seconds since the epoch."""
    with Path(os.environ["PEER_NOTES"]).open("a") as notes:
        notes.write(f"{time.time()}\n")
