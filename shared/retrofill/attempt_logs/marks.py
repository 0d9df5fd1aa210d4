"""Marks: the lines in an attempt's log that say to which run the next ones belong."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Sequence

# Precedes a mark on its way to the log, where it begins a line even if the one before is open.
SIGN = "\x1eretrofill\x1e"
_OF_RUN = re.compile(r"=== run (\d+) of ")


def of_runs(ids: Sequence[int], start: datetime, end: datetime, number: int) -> str:
    """The mark of a run that begins, or of a range of them. ``number``: how often it has begun."""
    what = f"run {ids[0]}" if len(ids) == 1 else f"{len(ids)} runs, from {ids[0]},"
    again = "" if number == 1 else f", begun {number} times"
    return f"=== {what} of {start.isoformat()} – {end.isoformat()}{again} ==="


def note(text: str) -> str:
    """A line of Retrofill's own in a log."""
    return f"=== {text} ==="


def signed(mark: str) -> bytes:
    """The bytes to write for a mark."""
    return f"{SIGN}{mark}\n".encode()


class Part:
    """Chooses the lines of one run from the log of its attempt; all lines if ``run_id`` is ``None``."""

    def __init__(self, run_id: int | None) -> None:
        self._run_id = run_id
        self._inside = run_id is None

    def has(self, line: str) -> bool:
        """Whether the next line belongs to the run."""
        if self._run_id is not None and (found := _OF_RUN.match(line)):
            self._inside = int(found[1]) == self._run_id
        return self._inside
