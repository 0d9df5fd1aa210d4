"""The last reasons why a run lost its drivers, stored with it and listed in its error. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from retrofill_core.contract.runs import ErrorInfo

KEPT = 10
REASON_CHARS = 300
UNKNOWN = ErrorInfo(type="DriverLost", message="no reason was reported")
RELEASED = ErrorInfo(type="AttemptReleased", message="a user cancelled a run of the attempt, which ended it")
SILENT = ErrorInfo(type="DriverLost", message="its lease ended: no heartbeat arrived in time")

HOST_SILENT = ErrorInfo(type="DriverLost", message="its lease ended, and its host is silent, too")


@dataclass(frozen=True)
class Loss:
    """``counted``: the run was retried alone, so it is what was lost with the driver.

    ``shared``: its whole host or Spark server was lost with it.
    """

    attempt: int
    reason: str
    counted: bool = True
    shared: bool = False


Losses = tuple[Loss, ...]


def losses_of(stored: Mapping[str, Any]) -> Losses:
    """The losses from a run's row."""
    # Before suspects, only losses that counted were stored.
    return tuple(
        Loss(one["attempt"], one["reason"], one.get("counted", True), one.get("shared", False))
        for one in stored.get("last", ())
    )


def stored(losses: Losses) -> dict[str, Any]:
    """The losses for a run's row, as an object: Postgres reads a list as an array dimension."""
    # asdict copies deeply: for the runs of a large range it takes longer than all else.
    return {"last": [_stored(loss) for loss in losses]} if losses else {}


def _stored(loss: Loss) -> dict[str, Any]:
    """Without what is as usual."""
    kept = dict(vars(loss))
    if not loss.shared:
        del kept["shared"]
    return kept


def with_loss(losses: Losses, attempt: int, error: ErrorInfo, *, counted: bool, shared: bool = False) -> Losses:
    """The losses with the newest one added, bounded in number and length."""
    return (*losses, Loss(attempt, error.message[:REASON_CHARS], counted, shared))[-KEPT:]


def failure(losses: Losses, count: int) -> ErrorInfo:
    """The error of a run that failed after ``count`` losses that counted, with the kept reasons."""
    reasons = (
        _fields_of([loss.attempt for loss in same], reason)
        for reason, same in groupby(losses, lambda loss: loss.reason)
    )
    times = "once" if count == 1 else f"{count} times"
    message = f"the driver was lost {times} when the run was retried alone; its losses: {'; '.join(reasons)}"
    return ErrorInfo(type="DriverLost", message=message[:4000])


def _fields_of(attempts: Sequence[int], reason: str) -> str:
    first, last = attempts[0], attempts[-1]
    return f"attempt {first}: {reason}" if first == last else f"attempts {first} to {last}: {reason}"
