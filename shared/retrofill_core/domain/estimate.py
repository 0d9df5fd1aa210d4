"""Sizes of the next attempts, and when a backfill will end: both from how long recent attempts took. Pure.

``batch_size="auto"`` aims at a duration of an attempt. For the end of a backfill, the work left is priced like attempts of the
sizes in use (``fit``), corrected by how recent ones compare with that line, and divided among as many drivers as were busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log, sqrt
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


# The range holds the true end four times out of five.
_Z = 1.28
# Durations may double or halve over a whole backfill: this is how far they spread.
_DRIFT = log(2) * 0.85 / _Z
# The spread assumed before attempts show their own, and how many attempts this assumption counts.
_SPREAD, _ASSUMED = 0.5, 3.0
# So many attempts of a backfill say more about it than those of others.
_ENOUGH = 3
# Every attempt weighs so much less than the next one.
_FADING = 0.95
# No end is farther away than a hundred years: moments end with the year 9999.
_MOST_SECONDS = 100 * 365 * 86_400.0
# Of what no average says: starts, the order of sizes, a driver that comes or goes.
_REST = 0.08


@dataclass(frozen=True)
class Took:
    """An attempt that ended: its ``runs``, and when it began and ended, in seconds before now."""

    runs: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.began - self.ended


@dataclass(frozen=True)
class Live:
    """A live attempt: the runs it was given, and since how many seconds it has been executed."""

    runs: int
    age: float


@dataclass(frozen=True)
class Left:
    """What is left of a backfill. ``done``: the share of its runs that have ended, from 0 to 1.

    ``ranges``: its batches are processed in one go.
    """

    queued: int
    live: Sequence[Live]
    done: float
    ranges: bool = False


@dataclass(frozen=True)
class Measured:
    """Attempts of a backfill (``own``) and of its whole ``pipeline``, the latest first.

    ``all_of_it``: the backfill has no earlier attempts; ``ranges``: some processed a range.
    """

    own: Sequence[Took]
    pipeline: Sequence[Took]
    live: Sequence[Live]
    all_of_it: bool
    ranges: bool


@dataclass(frozen=True)
class Estimate:
    """Seconds until the end: the most likely, and the range that four of five ends fall in.

    ``runs_per_second``: at this pace; ``work``: seconds of drivers left.
    """

    seconds: float
    low: float
    high: float
    runs_per_second: float
    work: float


@dataclass(frozen=True)
class _Price:
    """Seconds of an attempt of ``n`` runs: ``fixed + each · n``. ``spread``: around that, relatively.

    ``weight``: of how many attempts this is known.
    """

    fixed: float
    each: float
    spread: float
    weight: float
    size: float  # runs of an attempt, lately
    runs: float = 0.0  # of all that were measured

    def of(self, runs: float) -> float:
        return self.fixed + self.each * runs


def of_backfill(measured: Measured, queued: int, ended: int, total: int, resumed: float | None) -> Estimate | None:
    """The end of a running backfill, from its own attempts or, before it has enough, its pipeline's.

    ``queued``, ``ended``, ``total``: its runs; ``resumed``: so many seconds ago, if it was paused.
    """
    took = measured.own if len(measured.own) >= _ENOUGH else measured.pipeline
    drivers = busy_drivers(measured.own, measured.live, resumed, all_of_it=measured.all_of_it)
    return estimate(took, Left(queued, measured.live, ended / total, measured.ranges), drivers)


def estimate(took: Sequence[Took], left: Left, drivers: float) -> Estimate | None:
    """The end of a backfill. ``None``: no attempt of the pipeline has ended.

    ``took``: attempts like those to come, the latest first; ``drivers``: how many are busy at a
    time (``busy_drivers``).
    """
    measured = [each for each in took if each.seconds > 0]
    if not measured:
        return None
    price = _price(measured, left.live)
    if left.ranges and price.fixed == 0 and not _in_proportion(measured):
        # All were of about one size, and a smaller range takes about as long.
        price = replace(price, fixed=price.of(price.size), each=0.0)
    attempts = ceil(left.queued / price.size)
    drivers = max(1.0, min(drivers, len(left.live) + attempts))
    attempts += _more_at_the_end(left.queued, price.size, drivers * (1 if left.ranges else 2))
    begun = [max(price.of(each.runs) - each.age, 0.2 * price.of(each.runs)) for each in left.live]
    work = price.fixed * attempts + price.each * left.queued + sum(begun)
    # At the end, drivers wait for the last one: half an attempt on average.
    last = price.of(min(price.size, left.queued or price.size)) / 2 * (1 - 1 / drivers)
    seconds = min(max(work / drivers + last, *begun, 0.0), _MOST_SECONDS)
    return _with_range(seconds, work, drivers, price, left, attempts)


def busy_drivers(own: Sequence[Took], live: Sequence[Live], since: float | None, *, all_of_it: bool) -> float:
    """How many drivers a backfill kept busy on average: of ``own`` attempts, the latest first.

    ``since``: at most so many seconds ago, if it was paused before. Without ``all_of_it``, the
    backfill has earlier attempts, which may have ended within the time of the first ones.
    """
    if not own:
        return float(len(live))
    first = max(each.began for each in own) if all_of_it else max(each.ended for each in own)
    window = first if since is None else min(first, since)
    if window <= 0:
        return float(len(live)) or 1.0
    busy = sum(max(0.0, min(each.began, window) - each.ended) for each in own)
    busy += sum(min(each.age, window) for each in live)
    return busy / window


def _in_proportion(measured: Sequence[Took]) -> bool:
    """Whether small ranges were seen to take less than large ones: most of the time may be that of publishing."""
    sizes = [took.runs for took in measured]
    return max(sizes) >= 2 * min(sizes) and line([(took.runs, took.seconds) for took in measured])[1] > 0


def _price(measured: Sequence[Took], live: Sequence[Live]) -> _Price:
    """What attempts cost now. The latest weigh most."""
    fixed, each = fit([(took.runs, took.seconds) for took in measured])
    usual = _Price(fixed, each, 0.0, 0.0, 1.0)
    seen = [(took.runs, took.seconds / usual.of(took.runs)) for took in measured]
    # The quick ones of those that began together end first: one that is late says as much.
    late = [(one.runs, one.age / usual.of(one.runs)) for one in live]
    seen = [(runs, ratio) for runs, ratio in late if ratio > 1] + seen
    weights = [_FADING**n for n in range(len(seen))]
    total = sum(weights)
    mean = sum(weight * ratio for weight, (_, ratio) in zip(weights, seen, strict=True)) / total
    around = sum(weight * (ratio / mean - 1) ** 2 for weight, (_, ratio) in zip(weights, seen, strict=True))
    spread = sqrt((around + _ASSUMED * _SPREAD**2) / (total + _ASSUMED))
    known = total * total / sum(weight * weight for weight in weights)
    size = sum(weight * runs for weight, (runs, _) in zip(weights, seen, strict=True)) / total
    return replace(
        usual, fixed=fixed * mean, each=each * mean, spread=spread, weight=known, size=size, runs=size * total
    )


def _more_at_the_end(queued: int, size: float, parts: float) -> int:
    """Attempts beyond ``queued / size``: a batch has at most one of so many ``parts`` of what is left."""
    few = min(queued / parts, size)
    if few <= 1 or parts <= 1:
        return 0
    # What is left shrinks by the same share with each, until there are only single runs.
    return round(log(few) / -log(1 - 1 / parts) + parts * (1 - few / size))


def _with_range(seconds: float, work: float, drivers: float, price: _Price, left: Left, attempts: int) -> Estimate:
    to_come = max(1, attempts + len(left.live))
    average = price.spread**2 / price.weight
    # What is left is an average as well; of few attempts for each driver, the last one decides.
    own = price.spread**2 / to_come + (price.spread**2 + 0.2) * (drivers / to_come) ** 2 * (1 - 1 / drivers)
    # How far the middle of what is left is from the middle of what was measured.
    runs = left.queued + sum(each.runs for each in left.live)
    measured = price.runs * (1 - left.done) / runs if runs else 0.0
    drift = (_DRIFT * ((1 - left.done) + min(left.done, measured)) / 2) ** 2
    factor = exp(_Z * sqrt(average + own + drift + _REST**2))
    return Estimate(
        seconds=seconds,
        low=seconds / factor,
        high=min(seconds * factor, _MOST_SECONDS),
        runs_per_second=drivers * price.size / price.of(price.size),
        work=work,
    )
