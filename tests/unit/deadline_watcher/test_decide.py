"""How verdicts are grouped, and when the watcher looks again."""

from datetime import UTC, datetime, timedelta

import pytest

from deadline_watcher.decide import AFTER_SECONDS, AGAIN_SECONDS, POLL_SECONDS, decide, seconds_to_next

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)


def row(id, run_state, finished=None, due=0.0, fire_on_failure=False):
    return {
        "id": id,
        "due_at": NOW + timedelta(seconds=due),
        "fire_on_failure": fire_on_failure,
        "run_state": run_state,
        "run_finished_at": None if finished is None else NOW + timedelta(seconds=finished),
    }


def test_each_deadline_goes_to_its_end_and_one_that_is_not_due_to_none():
    rows = [
        row(1, "running", due=-1),
        row(2, "succeeded", finished=-2, due=-1),
        row(3, "failed", finished=-2, due=-1),
        row(4, "failed", finished=-2, due=-1, fire_on_failure=True),
        row(5, "cancelled", finished=-2, due=-1, fire_on_failure=True),
        row(6, "succeeded", finished=-1, due=-2),
        row(7, "running", due=1),
    ]
    verdicts = decide(rows, NOW)
    assert [r["id"] for r in verdicts.missed] == [1, 4, 6]
    assert [r["id"] for r in verdicts.met] == [2]
    assert [(r["id"], reason) for r, reason in verdicts.void] == [
        (3, "the run failed before the moment"),
        (5, "the run was cancelled before the moment"),
    ]


@pytest.mark.parametrize(
    ("left", "more", "expected"),
    [
        (None, False, POLL_SECONDS),
        (3600.0, False, POLL_SECONDS),
        (2.5, False, 2.5 + AFTER_SECONDS),
        (0.0, False, AGAIN_SECONDS),
        (-5.0, False, AGAIN_SECONDS),
        (-5.0, True, 0.0),
    ],
)
def test_the_next_look_is_at_the_next_moment_and_soon_where_a_run_was_locked(left, more, expected):
    earliest = None if left is None else NOW + timedelta(seconds=left)
    assert seconds_to_next(earliest, NOW, more=more) == pytest.approx(expected)
