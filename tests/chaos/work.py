"""What the runs of the workload do: a folder a day, staged as users stage theirs, and a log of being at work.

This is the users' side: drivers import it. ``conf`` has ``pipeline``, ``folder``, ``seconds`` (how long a run takes) and
``failing`` (logical dates that fail).
"""

from __future__ import annotations

import json
import os
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from retrofill import Pipeline

TICK_SECONDS = 0.05
PART = "part-0"
work = Pipeline("work", schedule="@daily", start="2000-01-01")


class DayFails(Exception):
    """This day was to fail."""


@work.task
def only(run: Any) -> None:
    """Be at work for a while, then stage the output."""
    folder, day = Path(str(run.conf["folder"])), label(run.logical_date)
    log = os.open(folder / "work.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        end = time.monotonic() + float(run.conf["seconds"])
        note(log, run, day)
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(TICK_SECONDS, left))  # the work itself
            note(log, run, day)
        if day in run.conf["failing"]:
            raise DayFails(day)
        stage(run, folder, str(run.conf["pipeline"]), day)
        note(log, run, day)
    finally:
        os.close(log)


def label(moment: datetime) -> str:
    """The name of a logical date: the day, with the minute where it is not midnight."""
    return moment.strftime("%Y-%m-%d" if moment.hour == moment.minute == 0 else "%Y-%m-%dT%H:%M")


def note(log: int, run: Any, day: str) -> None:
    """One line: this attempt is at work now (the machine's monotonic clock)."""
    line = {
        "pipeline": run.conf["pipeline"],
        "backfill": run.backfill_id,
        "run": run.id,
        "attempt": run.attempt,
        "day": day,
        "at": time.monotonic(),
    }
    # One write to a file that is appended to: lines of several processes do not mix.
    os.write(log, json.dumps(line).encode() + b"\n")


def stage(run: Any, folder: Path, pipeline: str, day: str) -> None:
    """Write the attempt's own folder; it becomes the day's once the attempt was accepted."""
    own = Path(run.stage(str(output(folder, pipeline, day))))
    own.mkdir()
    (own / PART).write_text(content(pipeline, day, run.backfill_id, run.attempt))


def output(folder: Path, pipeline: str, day: str) -> Path:
    """Where readers find a day."""
    return folder / "output" / pipeline / day


def content(pipeline: str, day: str, backfill: str, attempt: int) -> str:
    """The plain computation: what a day's file holds, and who made it."""
    total = sum(n * n for n in range(sum(map(int, re.findall("[0-9]+", day)))))
    return json.dumps({"pipeline": pipeline, "day": day, "total": total, "backfill": backfill, "attempt": attempt})
