"""A mark tells the lines of one run from those of the others in its batch."""

from datetime import UTC, datetime

from retrofill.attempt_logs import Part, note, of_runs

FIRST, SECOND, THIRD = (datetime(2013, 1, day, 5, tzinfo=UTC) for day in (1, 2, 3))


def test_a_part_begins_with_its_mark_and_ends_with_the_next():
    log = [
        "the session opens",
        of_runs([17], FIRST, SECOND, 1),
        "of 17",
        note("run 17 of nothing"),
        of_runs([18], SECOND, THIRD, 2),
        "of 18",
        of_runs([17], FIRST, SECOND, 3),
        "of 17 again",
    ]
    seventeen, none, everything = Part(17), Part(19), Part(None)
    assert [n for n, line in enumerate(log) if seventeen.has(line)] == [1, 2, 3, 6, 7]
    assert [line for line in log if none.has(line)] == []
    assert [line for line in log if everything.has(line)] == log


def test_marks_say_what_they_are_about():
    assert of_runs([17], FIRST, SECOND, 1) == "=== run 17 of 2013-01-01 05:00 – 2013-01-02 04:59 ==="
    assert of_runs([17, 18], FIRST, THIRD, 2).startswith("=== 2 runs, from 17, of 2013-01-01 05:00 – 2013-01-03 04:59,")
    assert of_runs([17], FIRST, SECOND, 2).endswith(", begun 2 times ===")
