"""User code of the workload: it stages one directory per day and logs while it is at work. It
processes ranges too.

Drivers import this file. ``conf`` has ``pipeline``, ``folder``, ``seconds`` (duration of a run),
``awaits`` (a file in the folder; its duration begins when that is there), ``failing`` (logical dates
that fail), ``hanging`` (those that never end) and ``manners`` (what those with bad ones do, once they have staged).
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from retrofill import Pipeline
from tests.support.manners import DO

TICK_SECONDS = 0.05
PART = "part-0"
work = Pipeline("work", schedule="@daily", start="2000-01-01")


class DayFails(Exception):
    """This day is configured to fail."""


@work.task
def only(run: Any) -> None:
    """Work for the configured time, then stage the output."""
    folder = Path(str(run.conf["folder"]))
    days = {label(interval.start): interval for interval in run.intervals}
    log = os.open(folder / "work.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        note(log, run, list(days))
        while run.conf["awaits"] and not (folder / str(run.conf["awaits"])).exists():
            time.sleep(TICK_SECONDS)  # simulated work
            note(log, run, list(days))
        end = time.monotonic() + float(run.conf["seconds"])
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(TICK_SECONDS, left))  # simulated work
            note(log, run, list(days))
        if days.keys() & set(run.conf["hanging"]):
            threading.Event().wait()
        if failing := days.keys() & set(run.conf["failing"]):
            raise DayFails(*sorted(failing))
        for day, interval in days.items():
            stage(run, folder, str(run.conf["pipeline"]), day, interval)
        note(log, run, list(days))
        for day in days:
            if what := run.conf["manners"].get(day):
                DO[what]()
    finally:
        os.close(log)


def label(moment: datetime) -> str:
    """The name of a logical date: the day, plus the time unless it is midnight."""
    return moment.strftime("%Y-%m-%d" if moment.hour == moment.minute == 0 else "%Y-%m-%dT%H:%M")


def note(log: int, run: Any, days: list[str]) -> None:
    """Log that this attempt is at work now, by the machine's monotonic clock."""
    line = {
        "pipeline": run.conf["pipeline"],
        "backfill": run.backfill_id,
        "run": run.id,
        "attempt": run.attempt,
        "process": os.getpid(),
        "days": days,
        "at": time.monotonic(),
    }
    # A single append, so that lines of several processes do not interleave.
    os.write(log, json.dumps(line).encode() + b"\n")


def stage(run: Any, folder: Path, pipeline: str, day: str, interval: Any) -> None:
    """Write the attempt's own directory.

    It becomes the day's output once the attempt is accepted.
    """
    own = Path(run.stage(str(output(folder, pipeline, day)), interval))
    own.mkdir()
    # The number of a range's other runs differs from ``run.attempt``; all have the attempt's id.
    attempt_id = int(own.parent.name.partition(".")[0])
    (own / PART).write_text(content(pipeline, day, run.backfill_id, attempt_id))


def output(folder: Path, pipeline: str, day: str) -> Path:
    """Where readers find a day's output."""
    return folder / "output" / pipeline / day


def content(pipeline: str, day: str, backfill: str, attempt_id: int) -> str:
    """The expected content of a day's file, including the backfill and attempt that wrote it."""
    total = sum(n * n for n in range(sum(map(int, re.findall("[0-9]+", day)))))
    return json.dumps({"pipeline": pipeline, "day": day, "total": total, "backfill": backfill, "attempt": attempt_id})
