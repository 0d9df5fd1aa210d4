"""The watcher's decisions. Pure: (what the rows say, the database's time) → verdicts, and when to look again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from retrofill.domain.deadline import DeadlineState, Watched, judge
from retrofill.domain.run import RunState

Row = Mapping[str, Any]

# Hints may be lost: the index is probed this often whatever is known.
POLL_SECONDS = 60.0
# Somebody else had the run of a due deadline locked.
AGAIN_SECONDS = 0.05
# Timers may end a little early; the database's clock decides, so a little late costs nothing and saves a look.
AFTER_SECONDS = 0.001


@dataclass
class Verdicts:
    """Deadlines to end, by state; those that stay armed are in none."""

    met: list[Row] = field(default_factory=list)
    missed: list[Row] = field(default_factory=list)
    void: list[tuple[Row, str]] = field(default_factory=list)


def decide(rows: Sequence[Row], now: datetime) -> Verdicts:
    """Judge armed deadlines, each with its locked run, at ``now``, read after the locks."""
    verdicts = Verdicts()
    for row in rows:
        watched = Watched(row["due_at"], row["fire_on_failure"], RunState(row["run_state"]), row["run_finished_at"])
        verdict = judge(watched, now)
        if verdict is None:
            continue
        match verdict.state:
            case DeadlineState.MET:
                verdicts.met.append(row)
            case DeadlineState.MISSED:
                verdicts.missed.append(row)
            case _:
                verdicts.void.append((row, verdict.reason or ""))
    return verdicts


def seconds_to_next(earliest: datetime | None, now: datetime, *, more: bool) -> float:
    """When to look again: at the next moment. ``more``: the batch was full, so there may be others at once."""
    if more:
        return 0.0
    if earliest is None:
        return POLL_SECONDS
    left = (earliest - now).total_seconds()
    return AGAIN_SECONDS if left <= 0 else min(left + AFTER_SECONDS, POLL_SECONDS)
