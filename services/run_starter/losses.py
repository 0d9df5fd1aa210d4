"""Why drivers of a run were lost: kept with the run, the last few of them, and told where the run fails over it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from retrofill.contract.runs import ErrorInfo

KEPT = 10
REASON_CHARS = 300
UNKNOWN = ErrorInfo(type="DriverLost", message="no reason was reported")
SILENT = ErrorInfo(type="DriverLost", message="its lease ended: no heartbeat arrived in time")


@dataclass(frozen=True)
class Loss:
    """One attempt, and how its driver was lost."""

    attempt: int
    reason: str


Losses = tuple[Loss, ...]


def losses_of(stored: Mapping[str, Any]) -> Losses:
    """The losses as a run's row has them."""
    return tuple(Loss(one["attempt"], one["reason"]) for one in stored.get("last", ()))


def stored(losses: Losses) -> dict[str, Any]:
    """The losses for a run's row: in an object, for a list in an array of rows would be one more dimension of it."""
    return {"last": [asdict(loss) for loss in losses]} if losses else {}


def and_one_more(losses: Losses, attempt: int, error: ErrorInfo) -> Losses:
    """The losses with the newest one, of bounded size."""
    return (*losses, Loss(attempt, error.message[:REASON_CHARS]))[-KEPT:]


def failure(losses: Losses, count: int) -> ErrorInfo:
    """The error of a run that fails because it lost ``count`` drivers, with the reason of each that is kept."""
    reasons = (
        _fields_of([loss.attempt for loss in same], reason)
        for reason, same in groupby(losses, lambda loss: loss.reason)
    )
    times = "once" if count == 1 else f"{count} times"
    message = f"the driver was lost {times}: {'; '.join(reasons)}"
    return ErrorInfo(type="DriverLost", message=message[:4000])


def _fields_of(attempts: Sequence[int], reason: str) -> str:
    first, last = attempts[0], attempts[-1]
    return f"attempt {first}: {reason}" if first == last else f"attempts {first} to {last}: {reason}"
