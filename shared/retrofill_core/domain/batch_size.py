"""``batch_size="auto"``: how many runs the next attempt gets, from how long recent ones took. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from retrofill.sdk.names import MAX_BATCH
from retrofill.states import AttemptMode, AttemptOutcome
from retrofill_core.domain.deadline import Reference
from retrofill_core.domain.pipeline import PipelineDefinition

# A size changes by at most this factor at once: an estimate is reliable near the sizes it is from.
STEP = 4
# A deadline that counts from one of these is missed by an attempt that takes too long. The others
# count from the calendar, or from how long runs take.
_COUNTED_FROM_THE_RUN = (Reference.RUN_QUEUED_AT, Reference.RUN_STARTED_AT, Reference.TASK_STARTED_AT)
_BAD = (AttemptOutcome.FAILED, AttemptOutcome.LOST)


@dataclass(frozen=True)
class Past:
    """An attempt that ended. ``complete``: all its runs succeeded in it.

    ``sha256``: the hash of its code; ``seconds``: from its begin to its end.
    """

    mode: AttemptMode
    sha256: str | None
    runs: int
    seconds: float
    outcome: AttemptOutcome
    complete: bool


@dataclass(frozen=True)
class Size:
    """The most runs of the next attempt, and why."""

    runs: int
    why: str


def target_seconds(definition: PipelineDefinition) -> float:
    """How long an attempt should take: ``batch_target``, or half of the shortest deadline.

    A run of a range is not done before the whole range is.
    """
    assert definition.batch_target_seconds is not None
    halves = [
        alert.interval_seconds / 2
        for alert in definition.deadlines
        if alert.reference in _COUNTED_FROM_THE_RUN and alert.interval_seconds > 0
    ]
    return min([definition.batch_target_seconds, *halves])


def next_size(definition: PipelineDefinition, history: Iterable[Past]) -> Size:
    """The size of the next attempt, from the pipeline's last ones.

    Only attempts whose runs all succeeded are measured and allow larger ones. A failed run ends
    its attempt early, so its duration would make the next ones too large.
    """
    mine = [past for past in history if _is_comparable(past, definition)]
    measured = [past for past in mine if past.complete]
    if not measured:
        return Size(1, "no attempt with this code has succeeded yet")
    proven = max(past.runs for past in measured)
    stopped = any(past.outcome in _BAD and past.runs > proven for past in mine)
    largest = proven if stopped else STEP * proven
    target = target_seconds(definition)
    wanted, line = _fitting(measured, target)
    runs = max(1, min(wanted, largest, definition.batch_size))
    if runs == definition.batch_size:
        return Size(runs, "the largest size allowed")
    if runs == wanted:
        return Size(runs, f"aims at {target:g} s; attempts took about {line}")
    if stopped:
        return Size(runs, f"a larger attempt than {proven} failed or was lost recently")
    return Size(runs, f"at most {STEP} × {proven}, the largest size that succeeded recently")


def _is_comparable(past: Past, definition: PipelineDefinition) -> bool:
    """Whether it executed the same code in the same mode. A range of one run has the mode each."""
    return past.sha256 == definition.code.sha256 and (past.mode == definition.batch_mode or past.runs == 1)


def _fitting(measured: Sequence[Past], target: float) -> tuple[int, str]:
    """The size whose attempt takes ``target`` seconds, and the line that says so."""
    fixed, each = fit([(past.runs, past.seconds) for past in measured])
    line = f"{fixed:.2g} s + {each:.2g} s per run"
    if each == 0:
        return MAX_BATCH, line
    # The nearer the attempts are to the target, the less the size may change: among attempts of
    # about one size, noise alone decides what part of their time is fixed.
    usual = sum(past.runs for past in measured) / len(measured)
    ratio = target / (fixed + each * usual)
    lowest, highest = sorted((usual, usual * ratio * ratio))
    return max(1, int(min(max((target - fixed) / each, lowest), highest, MAX_BATCH))), line


def fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """``a`` and ``b``, both at least 0, of the line seconds = a + b · runs nearest to the points.

    Without a plausible line, ``a`` is 0: sizes then change in proportion.
    """
    fixed, each = line(points)
    if each > 0 and fixed > 0:
        return fixed, each
    seconds = fixed + each * _mean_runs(points)
    # If all sizes seem to take the same time, that is also what the largest takes.
    return 0.0, seconds / (_mean_runs(points) if each > 0 else max(runs for runs, _ in points))


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """As ``fit``, also if ``a`` or ``b`` is negative. ``b`` is 0 if all points are of one size.

    Least squares over the median of each size, weighted by its number of points: a few outliers
    change nothing.
    """
    by_size: dict[int, list[float]] = {}
    for runs, seconds in points:
        by_size.setdefault(runs, []).append(seconds)
    medians = [(len(found), runs, median(found)) for runs, found in by_size.items()]
    mean_runs = _mean_runs(points)
    mean_seconds = sum(weight * seconds for weight, _, seconds in medians) / len(points)
    spread = sum(weight * (runs - mean_runs) ** 2 for weight, runs, _ in medians)
    common = sum(weight * (runs - mean_runs) * (seconds - mean_seconds) for weight, runs, seconds in medians)
    each = common / spread if spread > 0 else 0.0
    return mean_seconds - each * mean_runs, each


def _mean_runs(points: Sequence[tuple[int, float]]) -> float:
    return sum(runs for runs, _ in points) / len(points)
