"""The chosen sizes of batches: what they are computed from, and how soon they fit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.definitions import alert, daily

from retrofill.sdk.names import MAX_BATCH
from retrofill.states import AttemptMode, AttemptOutcome
from retrofill_core.domain.estimate import STEP, Past, fit, next_size, target_seconds
from retrofill_core.store.progress import PAST_ATTEMPTS

TARGET = 600.0
RANGE = daily(batch_size=MAX_BATCH, batch_target_seconds=TARGET, batch_mode="range")
EACH = daily(batch_size=MAX_BATCH, batch_target_seconds=TARGET)


def past(runs: int, seconds: float, mode: AttemptMode = AttemptMode.RANGE, **more: Any) -> Past:
    """An attempt that succeeded; a range of one run has the mode each."""
    mode = mode if runs > 1 else AttemptMode.EACH
    return replace(Past(mode, None, runs, seconds, AttemptOutcome.DONE, complete=True), **more)


def failed(runs: int, seconds: float = 1.0, outcome: AttemptOutcome = AttemptOutcome.FAILED) -> Past:
    return past(runs, seconds, outcome=outcome, complete=False)


def sizes(history: Sequence[Past], **more: Any) -> int:
    return next_size(RANGE.model_copy(update=more), history).runs


# the target


@pytest.mark.parametrize(
    ("deadlines", "seconds"),
    [
        ([], 600),
        ([("RUN_STARTED_AT", 300)], 150),
        ([("RUN_STARTED_AT", 3600), ("RUN_QUEUED_AT", 900)], 450),
        ([("TASK_STARTED_AT", 60)], 30),
        # These do not count from the run's own start, or are over before it.
        ([("RUN_QUEUED_AT", -60), ("LOGICAL_DATE", 60), ("BACKFILL_REQUESTED_AT", 60), ("AVERAGE_RUNTIME", 60)], 600),
    ],
)
def test_an_attempt_takes_at_most_half_of_the_shortest_deadline(
    deadlines: list[tuple[str, float]], seconds: float
) -> None:
    more: dict[str, dict[str, Any]] = {
        "TASK_STARTED_AT": {"task": "only"},
        "AVERAGE_RUNTIME": {"last_n": 5, "min_runs": 2},
    }
    alerts = [alert(f"d{n}", kind, after, **more.get(kind, {})) for n, (kind, after) in enumerate(deadlines)]
    assert target_seconds(daily(batch_target_seconds=TARGET, deadlines=alerts)) == seconds


# steps


def test_without_history_it_begins_with_one_run_and_grows_fourfold() -> None:
    history: list[Past] = []
    found = []
    for _ in range(9):
        size = next_size(RANGE, history)
        found.append(size.runs)
        history.insert(0, past(size.runs, 0.001 * size.runs))
    assert found == [1, 4, 16, 64, 256, 1024, MAX_BATCH, MAX_BATCH, MAX_BATCH]
    assert next_size(RANGE, []).why == "no attempt with this code has succeeded yet"
    assert next_size(RANGE, history[-1:]).why == "at most 4 × 1, the largest size that succeeded recently"
    assert next_size(RANGE, history).why == "the largest size allowed"


def test_a_request_lowers_the_size_and_never_raises_it() -> None:
    history = [past(64, 64.0), past(16, 16.0)]
    assert [sizes(history, batch_size=limit) for limit in (1, 5, 255, 256, MAX_BATCH)] == [1, 5, 255, 256, 256]


def test_what_did_not_succeed_as_a_whole_lets_nothing_grow() -> None:
    history = [past(4, 4.0), past(1, 1.0)]
    # A failed run ends its attempt early: neither its duration nor its size counts.
    cut_short = past(16, 0.01, complete=False)
    assert sizes([cut_short] * 5) == 1
    assert sizes([cut_short, *history]) == sizes(history) == 16


@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.LOST])
def test_a_larger_attempt_that_failed_or_was_lost_stops_the_growth(outcome: AttemptOutcome) -> None:
    history = [past(4, 4.0), past(1, 1.0)]
    stopped = next_size(RANGE, [failed(16, outcome=outcome), *history])
    assert (stopped.runs, stopped.why) == (4, "a larger attempt than 4 failed or was lost recently")
    # A smaller one says nothing, and neither does one that was cancelled or released.
    assert sizes([failed(4, outcome=outcome), *history]) == 16
    for other in (AttemptOutcome.CANCELLED, AttemptOutcome.RELEASED):
        assert sizes([failed(16, outcome=other), *history]) == 16


def test_only_attempts_with_the_same_code_in_the_same_mode_count() -> None:
    assert sizes([past(64, 64.0, sha256="a" * 64)]) == 1
    assert sizes([past(64, 64.0, mode=AttemptMode.EACH)]) == 1
    assert sizes([past(64, 64.0, mode=AttemptMode.EACH), past(1, 1.0)]) == 4
    assert next_size(EACH, [past(64, 64.0)]).runs == 1
    assert next_size(EACH, [past(64, 64.0, mode=AttemptMode.EACH)]).runs == 256


@given(
    history=st.lists(
        st.builds(
            past,
            st.integers(1, MAX_BATCH),
            st.floats(0, 1e6),
            outcome=st.sampled_from(AttemptOutcome),
            complete=st.booleans(),
        ),
        max_size=PAST_ATTEMPTS,
    ),
    limit=st.integers(1, MAX_BATCH),
)
def test_whatever_happened_a_size_is_within_its_bounds(history: list[Past], limit: int) -> None:
    proven = max((each.runs for each in history if each.complete), default=0)
    assert 1 <= sizes(history, batch_size=limit) <= min(limit, max(1, STEP * proven))


# the line


def test_the_line_through_exact_points_is_found() -> None:
    assert fit([(1, 22.5), (4, 30.0), (16, 60.0)]) == pytest.approx((20, 2.5))
    assert next_size(RANGE, [past(n, 20 + 2.5 * n) for n in (1, 4, 16, 64)]).runs == 232
    said = next_size(RANGE, [past(n, 20 + 2.5 * n) for n in (1, 4, 16, 64)]).why
    assert said == "aims at 600 s; attempts took about 20 s + 2.5 s per run"


def test_without_a_plausible_line_a_size_changes_in_proportion() -> None:
    # One size; larger ones that took less; a negative fixed part.
    for points in ([(8, 100.0)] * 3, [(4, 110.0), (8, 90.0)], [(1, 1.0), (15, 199.0)]):
        assert fit(points) == pytest.approx((0.0, 12.5))
    assert sizes([past(8, 100.0)] * 3) == 32
    assert sizes([past(8, 400.0)] * 3) == 12


def test_an_outlier_changes_nothing() -> None:
    history = [past(n, 20 + 2.5 * n) for n in (1, 4, 16, 64) for _ in range(3)]
    assert sizes([past(64, 3600.0), *history]) == sizes(history)


@given(st.lists(st.tuples(st.integers(1, MAX_BATCH), st.floats(0, 1e6)), min_size=1, max_size=PAST_ATTEMPTS))
@example([(1, 0.0)])
@example([(1, 5.0), (1, 7.0)])
def test_a_line_never_falls_and_never_begins_below_zero(points: list[tuple[int, float]]) -> None:
    fixed, each = fit(points)
    assert fixed >= 0 and each >= 0
    assert math.isfinite(fixed) and math.isfinite(each)


# how soon it fits


def played(
    attempts: int, seconds: Callable[[int], float], usual: Callable[[int], float], limit: int = MAX_BATCH
) -> list[tuple[int, float]]:
    """Attempts one after the other, as their sizes and usual durations."""
    history: list[Past] = []
    found = []
    for _ in range(attempts):
        size = sizes(history, batch_size=limit)
        history = [past(size, seconds(size)), *history][:PAST_ATTEMPTS]
        found.append((size, usual(size)))
    return found


def fits(size: int, seconds: float) -> bool:
    """Whether an attempt takes about the target, or as long as the largest or smallest size does."""
    too_short = seconds < 0.5 * TARGET and size < MAX_BATCH
    return not too_short and (seconds <= 1.5 * TARGET or size == 1)


@pytest.mark.parametrize("seed", range(200))
def test_after_a_few_attempts_they_take_about_as_long_as_they_should(seed: int) -> None:
    """Durations a + b·n that are known up to a fifth: a from 0.1 s to 200 s, b from 0.01 s to 30 s.

    Sizes reach n in log4(n) steps at best. No more than three attempts are spent on learning.
    """
    chance = random.Random(seed)
    a, b = 10 ** chance.uniform(-1, 2.3), 10 ** chance.uniform(-2, 1.5)

    def usual(size: int) -> float:
        return a + b * size

    made = played(80, lambda size: usual(size) * chance.uniform(0.8, 1.2), usual)
    first = next(n for n, each in enumerate(made, 1) if fits(*each))
    ideal = max(1.0, min(MAX_BATCH, (0.5 * TARGET - a) / b))
    assert first <= 1 + math.ceil(math.log(ideal, STEP)) + 3, (a, b, made[:first])
    later = [fits(*each) for each in made[first:]]
    assert sum(later) >= 0.9 * len(later), (a, b, made)
    assert all(other <= STEP * one for (one, _), (other, _) in pairwise(made[:first]))


def test_attempts_that_suddenly_take_longer_become_smaller() -> None:
    slow = [0.0]
    history: list[Past] = []
    found = []
    for n in range(60):
        if n == 20:
            slow[0] = 5.0
        size = sizes(history)
        seconds = (1 + slow[0]) * (10 + 0.5 * size)
        history = [past(size, seconds), *history][:PAST_ATTEMPTS]
        found.append(seconds)
    assert found[19] == pytest.approx(TARGET, rel=0.1)
    assert found[20] > 5 * TARGET
    assert found[-1] == pytest.approx(TARGET, rel=0.5)
