"""The oracle detects violations: a small correct history passes, and each way of breaking it is
reported under its promise.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.chaos.history import History
from tests.chaos.oracle import PROMISES, check
from tests.unit.chaos.bad_history import BAD, DUE, Bad, change
from tests.unit.chaos.good_history import at, good
from tests.unit.chaos.good_history import change as changed


def test_a_good_history_breaks_nothing() -> None:
    assert check(good()) == []


@pytest.mark.parametrize(("promise", "what", "spoil"), BAD, ids=[f"{p}: {what}" for p, what, _ in BAD])
def test_each_way_of_breaking_it_is_found(promise: str, what: str, spoil: Bad) -> None:
    history = good()
    spoil(history)
    assert promise in {violation.promise for violation in check(history)}


@pytest.mark.parametrize(("what", "add"), DUE, ids=[what for what, _ in DUE])
def test_a_rejection_that_is_due_is_none(what: str, add: Bad) -> None:
    history = good()
    add(history)
    assert check(history, ["rejections_are_due"]) == []


def _published_by_another(*given: int) -> History:
    """Of a batch that staged three runs, an attempt of its own publishes these."""
    ids = (1, 2, 3)
    steps: tuple[tuple[str, str], ...] = (("starting", "running"), ("running", "staged"))
    runs = [
        {"id": n, "backfill_id": "b", "position": n - 1, "interval_start": at(n), "interval_end": at(n + 1)}
        for n in ids
    ]
    batch = {"backfill_id": "b", "position": 0, "runs": len(ids)}
    return History(
        batches={"p": len(ids)},
        tables={
            "backfill": [{"id": "b", "pipeline": "p"}],
            "run": runs,
            "attempt": [batch | {"id": 1, "mode": "each"}, batch | {"id": 2, "mode": "publish"}],
        },
        changes=[
            *(changed("run", n, "queued", "starting", 1, 1, 1) for n in ids),
            *(changed("run", n, *step, 2 * n + (step[1] == "staged"), 1, 1) for n in ids for step in steps),
            *(changed("run", n, "staged", "publishing", 10, 1, 2) for n in given),
        ],
    )


@pytest.mark.parametrize(
    ("given", "found"),
    [((1, 2, 3), []), ((1, 3), []), ((1, 2), ["batches_run_in_order"]), ((2, 3), ["batches_run_in_order"])],
)
def test_a_publisher_spans_what_one_attempt_staged_and_may_find_some_of_it_ended(
    given: tuple[int, ...], found: list[str]
) -> None:
    broken = check(_published_by_another(*given), ["batches_are_adjacent", "batches_run_in_order"])
    assert [violation.promise for violation in broken] == found


def _clock_went_back(history: History) -> None:
    """The clock goes back nine seconds between the second day's miss (at 6) and its end (at 9,
    recorded as 0).
    """
    history.clock_slack = timedelta(seconds=9)
    (miss,) = [each for each in history.changes if (each["entity"], each["to"]) == ("deadline", "missed")]
    history.changes.remove(miss)
    ended = [each for each in history.changes if each["began"] == at(9)]
    history.changes.insert(history.changes.index(ended[0]), miss)
    for each in ended:
        each.update(began=at(0), at=at(0))
    change(history, "run", 1, finished_at=at(0))
    change(history, "attempt", 2, ended_at=at(0))


def test_a_miss_before_an_end_that_a_clock_set_back_notes_as_earlier_is_right() -> None:
    history = good()
    _clock_went_back(history)
    assert check(history) == []


def _miss_of(history: History) -> dict[str, Any]:
    (miss,) = [each for each in history.changes if (each["entity"], each["to"]) == ("deadline", "missed")]
    return miss


def _missed_after_the_end(history: History) -> None:
    miss = _miss_of(history)
    history.changes.remove(miss)
    history.changes.append(miss)


JUMPED: list[tuple[str, str, Bad]] = [
    ("each_deadline_is_judged_right", "missed after what it is about was done in time", _missed_after_the_end),
    ("each_deadline_is_judged_right", "missed before its moment", lambda h: _miss_of(h).update(began=at(4), at=at(4))),
    ("each_deadline_is_judged_right", "let off", lambda h: change(h, "deadline", 1, state="void")),
    ("each_deadline_is_judged_right", "the clock stood", lambda h: setattr(h, "clock_slack", timedelta())),
    ("moments_are_the_databases", "a second off", lambda h: change(h, "run", 1, finished_at=at(1))),
]


@pytest.mark.parametrize(("promise", "what", "spoil"), JUMPED, ids=[f"{p}: {what}" for p, what, _ in JUMPED])
def test_a_clock_that_jumped_excuses_nothing_else(promise: str, what: str, spoil: Bad) -> None:
    history = good()
    _clock_went_back(history)
    spoil(history)
    assert promise in {violation.promise for violation in check(history)}


def test_every_promise_has_a_bad_history() -> None:
    assert {promise for promise, _, _ in BAD} == set(PROMISES)
