"""The grouping of verdicts, and the time of the watcher's next check."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.support.rows import a_deadline

from deadline_watcher.decide import decide, how_it_ended, seconds_to_next
from retrofill_core.domain.deadline import LOCKED_SECONDS, MARGIN_SECONDS, POLL_SECONDS, End
from retrofill_core.store.deadlines import TaskEnd

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)


def after(seconds):
    return None if seconds is None else NOW + timedelta(seconds=seconds)


def row(id, run_state, ended=None, due=0.0, fire_on_failure=False, task=None, run_id=1, attempt=1, staged=None):
    return a_deadline(
        id=id,
        run_id=run_id,
        task=task,
        due_at=after(due),
        fire_on_failure=fire_on_failure,
        run_state=run_state,
        run_attempt=attempt,
        ended_at=after(ended),
        staged_at=after(staged),
    )


def tried(attempt, state, finished_at=None):
    return TaskEnd(attempt, state, finished_at)


def test_each_deadline_goes_to_its_end_and_one_that_is_not_due_to_none():
    rows = [
        row(1, "running", due=-1),
        row(2, "succeeded", ended=-2, due=-1),
        row(3, "failed", ended=-2, due=-1),
        row(4, "failed", ended=-2, due=-1, fire_on_failure=True),
        row(5, "cancelled", ended=-2, due=-1),
        row(6, "succeeded", ended=-1, due=-2),
        row(7, "running", due=1),
        row(8, "paused", due=-1, run_id=None),
        row(9, "succeeded", ended=-2, due=-1, run_id=None),
        # A review that takes its time, and one that came to nothing.
        row(10, "staged", staged=-2, due=-1),
        row(11, "succeeded", ended=0, staged=-2, due=-1),
        row(12, "in_review", staged=-2, due=-1, run_id=None),
        row(13, "publishing", staged=-1, due=-2),
        row(14, "staged", due=-1),
        row(15, "cancelled", ended=-2, staged=-3, due=-1),
    ]
    verdicts = decide(rows, {}, NOW)
    assert [r.id for r in verdicts.missed] == [1, 4, 6, 8, 13, 14]
    assert [r.id for r in verdicts.met] == [2, 9, 10, 11, 12]
    assert verdicts.recovered == {6: after(-1), 13: after(-1)}
    assert [(r.id, reason) for r, reason in verdicts.void] == [
        (3, "the run failed before the moment"),
        (5, "the run was cancelled before the moment"),
        (15, "the run was cancelled before the moment"),
    ]


@pytest.mark.parametrize(
    ("run_state", "attempt", "tries", "expected"),
    [
        ("running", 1, [], (None, None)),
        ("running", 1, [tried(1, "running")], (None, None)),
        ("running", 1, [tried(1, "retrying")], (None, None)),
        ("running", 1, [tried(1, "succeeded", after(-3))], (End.SUCCEEDED, after(-3))),
        (
            "running",
            2,
            [tried(1, "succeeded", after(-9)), tried(2, "succeeded", after(-3))],
            (End.SUCCEEDED, after(-9)),
        ),
        (
            "running",
            2,
            [tried(1, "succeeded", after(-9)), tried(2, "failed", after(-3))],
            (End.SUCCEEDED, after(-9)),
        ),
        ("running", 1, [tried(1, "failed", after(-3))], (End.FAILED, after(-3))),
        ("running", 1, [tried(1, "upstream_failed", after(-3))], (End.FAILED, after(-3))),
        ("running", 1, [tried(1, "skipped", after(-3))], (End.SKIPPED, after(-3))),
        ("queued", 1, [tried(1, "cancelled", after(-3))], (None, None)),
        ("running", 2, [tried(1, "failed", after(-3)), tried(2, "running")], (None, None)),
        ("cancelled", 1, [tried(1, "cancelled", after(-3))], (End.CANCELLED, after(-1))),
        ("failed", 1, [tried(1, "cancelled", after(-3))], (End.FAILED, after(-1))),
    ],
)
def test_a_task_ends_with_its_first_success_or_for_good(run_state, attempt, tries, expected):
    ended = -1 if run_state in ("failed", "cancelled") else None
    one = row(1, run_state, ended=ended, task="load", attempt=attempt)
    assert how_it_ended(one, {(1, "load"): tries}) == expected


@pytest.mark.parametrize(
    ("left", "more", "expected"),
    [
        (None, False, POLL_SECONDS),
        (3600.0, False, POLL_SECONDS),
        (2.5, False, 2.5 + MARGIN_SECONDS),
        (0.0, False, LOCKED_SECONDS),
        (-5.0, False, LOCKED_SECONDS),
        (-5.0, True, 0.0),
    ],
)
def test_the_next_look_is_at_the_next_moment_and_soon_where_a_run_was_locked(left, more, expected):
    earliest = None if left is None else NOW + timedelta(seconds=left)
    assert seconds_to_next(earliest, NOW, more=more) == pytest.approx(expected)
