"""The estimated end of a backfill: how often its range holds the true one, and how wide it is."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from statistics import mean, median

import pytest

from retrofill_core.domain.estimate import Estimate, Left, Live, Took, busy_drivers, estimate

RECENT = 60
SEEDS = 150


@dataclass(frozen=True)
class Attempt:
    runs: int
    began: float
    ended: float


@dataclass(frozen=True)
class Made:
    """A whole backfill, as it would go without an estimate."""

    drivers: int
    attempts: tuple[Attempt, ...]
    ranges: bool = False

    @property
    def runs(self) -> int:
        return sum(each.runs for each in self.attempts)

    @property
    def end(self) -> float:
        return max(each.ended for each in self.attempts)

    def when(self, share: float) -> float:
        """The first moment at which this share of the runs has ended."""
        ended = 0
        for each in sorted(self.attempts, key=lambda one: one.ended):
            ended += each.runs
            if ended >= share * self.runs:
                return each.ended
        raise AssertionError("all runs end")

    def estimated(self, share: float) -> tuple[Estimate, float]:
        """The estimate at that moment, and the seconds that were really left."""
        now = self.when(share)
        ended = sorted((each for each in self.attempts if each.ended <= now), key=lambda one: -one.ended)
        going = [each for each in self.attempts if each.began <= now < each.ended]
        took = [Took(each.runs, now - each.began, now - each.ended) for each in ended[:RECENT]]
        live = [Live(each.runs, now - each.began) for each in going]
        queued = sum(each.runs for each in self.attempts if each.began > now)
        drivers = busy_drivers(took, live, None, all_of_it=len(ended) <= RECENT)
        found = estimate(took, Left(queued, live, sum(each.runs for each in ended) / self.runs, self.ranges), drivers)
        assert found is not None
        return found, self.end - now


@cache
def made(seed: int, drivers: int | None = None, runs: int | None = None, *, ranges: bool = False) -> Made:
    """A backfill whose durations grow or shrink by up to twice, with noise, in batches of all sizes.

    Of ranges, almost all of the time is fixed, and all are as large as they may be.
    """
    rng = random.Random(seed)
    drivers = drivers or rng.choice([1, 2, 3, 4, 8, 16])
    runs = runs or rng.choice([60, 200, 600, 2000])
    largest = rng.choice([1, 1, 4, 16])
    drift = 2 ** rng.uniform(-1, 1)
    noise = rng.choice([0.05, 0.2, 0.4])
    fixed, each = rng.choice([(0.0, 10.0), (5.0, 1.0), (20.0, 20.0), (0.5, 0.1)])
    if ranges:
        largest, (fixed, each) = rng.choice([8, 30]), rng.choice([(30.0, 0.1), (60.0, 1.0)])
    free = [0.0] * drivers
    found, position = [], 0
    while position < runs:
        # Batches get smaller towards the end (``run_starter.claims.batches``).
        wanted, parts = (largest, drivers) if ranges else (rng.randint(1, largest), 2 * drivers)
        size = min(wanted, -(-(runs - position) // parts))
        factor = 1 + (drift - 1) * position / runs
        began = heapq.heappop(free)
        ended = began + (fixed + each * size) * factor * rng.lognormvariate(0, noise)
        found.append(Attempt(size, began, ended))
        heapq.heappush(free, ended)
        position += size
    return Made(drivers, tuple(found), ranges)


def held(backfills: Sequence[Made], share: float) -> tuple[float, float]:
    """How often the range holds the true end, and the median width relative to the estimate."""
    # Of a few large attempts, the last ones may have ended together.
    found = [(guess, true) for guess, true in (each.estimated(share) for each in backfills) if true > 0]
    inside = mean(guess.low <= true <= guess.high for guess, true in found)
    return inside, median((guess.high - guess.low) / guess.seconds for guess, _ in found)


@pytest.mark.parametrize(("share", "width"), [(0.1, 0.75), (0.3, 0.65), (0.5, 0.55), (0.8, 0.5)])
def test_the_range_holds_the_end_and_is_narrow(share: float, width: float) -> None:
    inside, wide = held([made(seed) for seed in range(SEEDS)], share)
    assert inside >= 0.7
    assert wide <= width


@pytest.mark.parametrize("drivers", [1, 2, 4, 8, 16])
def test_the_range_holds_with_any_number_of_drivers(drivers: int) -> None:
    inside, wide = held([made(seed, drivers=drivers) for seed in range(SEEDS, SEEDS + 100)], 0.1)
    assert inside >= 0.7
    assert wide <= 1.0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_range_holds_for_ranges(share: float) -> None:
    inside, wide = held([made(seed, ranges=True) for seed in range(SEEDS)], share)
    assert inside >= 0.7
    assert wide <= 0.9


@pytest.mark.parametrize("runs", [20, 60, 600])
def test_the_range_holds_for_small_and_large_backfills(runs: int) -> None:
    inside, wide = held([made(seed, runs=runs) for seed in range(SEEDS, SEEDS + 100)], 0.1)
    assert inside >= 0.7
    assert wide <= 1.5


def test_a_steady_backfill_is_estimated_within_a_few_percent() -> None:
    """Half of 100 runs of ten seconds on two drivers are done; two have just begun."""
    took = [Took(1, 10.0 * n + 10, 10.0 * n) for n in range(25) for _ in range(2)]
    found = estimate(took, Left(48, [Live(1, 0.0), Live(1, 0.0)], 0.5), busy_drivers(took, [], None, all_of_it=True))
    assert found is not None
    assert found.seconds == pytest.approx(250, rel=0.05)
    assert found.runs_per_second == pytest.approx(0.2)
    assert found.work == pytest.approx(500)
    assert found.low < found.seconds < found.high


def test_recent_attempts_weigh_more() -> None:
    """They took twice as long as the earlier ones."""
    slower = [Took(1, 20.0 * (n + 1), 20.0 * n) for n in range(30)]
    before = [Took(1, 600 + 10.0 * (n + 1), 600 + 10.0 * n) for n in range(30)]
    found = estimate([*slower, *before], Left(60, [], 0.5), 1)
    assert found is not None
    assert found.seconds > 60 * 17


def test_batches_of_other_sizes_are_priced_by_their_line() -> None:
    """An attempt takes 60 s and 1 s for each run: ten of 20 are no measure of ten single runs."""
    took = [Took(n, 60.0 + n, 0.0) for n in (20, 20, 20, 5, 5, 1)]
    found = estimate(took, Left(0, [Live(40, 0.0)], 0.5), 1)
    assert found is not None
    assert found.seconds == pytest.approx(100, rel=0.05)


def test_a_pause_says_nothing_about_drivers() -> None:
    """Two drivers were busy for 100 s since the resume, and once for 10 s long before."""
    since = [Took(1, 100.0, 50.0)] * 2 + [Took(1, 50.0, 0.0)] * 2
    assert busy_drivers([*since, Took(1, 10_000.0, 9_990.0)], [], 100.0, all_of_it=True) == pytest.approx(2)


def test_an_end_is_always_a_moment() -> None:
    found = estimate([Took(1, 1e9, 0.0)] * 5, Left(10**6, [], 0.1), 1)
    assert found is not None
    assert datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=found.high) < datetime(2127, 1, 1, tzinfo=UTC)


def test_nothing_is_known_before_an_attempt_ended() -> None:
    assert estimate([], Left(10, [Live(1, 5.0)], 0.0), 1) is None


def test_what_began_long_ago_is_not_expected_to_end_in_the_past() -> None:
    found = estimate([Took(1, 10.0, 0.0)] * 5, Left(0, [Live(1, 500.0)], 0.9), 1)
    assert found is not None
    assert found.low > 0


def test_small_ranges_that_took_less_are_expected_to_take_less() -> None:
    """A year is published day by day, and was split because of one bad day: 16 days of it are left."""
    # Attempts of a backfill into an Iceberg table, in seconds before now: runs, begin, end.
    took = [Took(23, 30.1, 15.5), Took(46, 64.3, 30.2), Took(91, 137.9, 64.4), Took(182, 150.4, 0.1)]
    drivers = busy_drivers(took, [Live(5, 0.5)], None, all_of_it=True)
    found = estimate(took, Left(11, [Live(5, 0.5)], 349 / 365, ranges=True), drivers)
    assert found is not None
    assert found.low <= 10.3 <= found.high, found
