"""How the CLI formats speed, remaining time, ranges and moments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO

from rich.console import Console

from retrofill.cli.backfills import stretches
from retrofill.cli.output import cell, counts, duration, moment
from retrofill.cli.watching import Progress, Speed, line, missing, render

START = datetime(2024, 1, 1, 12, tzinfo=UTC)


def check(ended: int, seconds: float = 0, state: str = "running") -> Progress:
    return Progress(
        "b", "flights", state, 100, {"succeeded": ended, "queued": 100 - ended}, START + timedelta(seconds=seconds)
    )


def test_speed_is_that_of_the_last_seconds():
    speed = Speed()
    assert speed.per_second() is None
    speed.add(check(0))
    assert speed.per_second() is None
    speed.add(check(10, 5))
    assert speed.per_second() == 2
    speed.add(check(10, 24))
    speed.add(check(50, 26))
    assert speed.per_second() == 40 / 21


def test_a_line_has_everything():
    assert line(check(50), 2.0) == "b running: 50/100 runs ended (50 queued, 50 succeeded), 2.0 runs/s, 0:00:25 left"
    assert line(check(50, state="paused"), 2.0).endswith(", 2.0 runs/s")
    assert line(check(100, state="succeeded"), 2.0) == "b succeeded: 100/100 runs ended (100 succeeded)"


def test_the_live_display_fits_80_columns():
    out = Console(width=80, record=True, file=StringIO())
    out.print(render(check(50, state="paused"), 1234.5))
    text = out.export_text()
    assert "50/100 (50 %), 1,234.5 runs/s" in text
    assert "retrofill backfill resume b" in text
    assert max(map(len, text.splitlines())) <= 80


def test_neighbours_with_one_outcome_are_one_stretch():
    assert stretches(["run", "run", "in flight", "run"]) == [(0, 2, "run"), (2, 3, "in flight"), (3, 4, "run")]
    assert stretches([]) == []


def test_moments_are_short_and_in_their_zone():
    assert moment(datetime(2024, 1, 1, 5, tzinfo=UTC), "America/New_York") == "2024-01-01"
    assert moment(datetime(2024, 1, 1, 5, tzinfo=UTC)) == "2024-01-01 05:00:00"
    assert duration(3723.4) == "1:02:03"
    assert counts({"succeeded": 1000, "failed": 2, "queued": 0}) == "2 failed, 1,000 succeeded"


def test_what_users_wrote_is_no_markup():
    assert cell("[red]x") == "\\[red]x"
    assert cell("failed") == "[red]failed[/]"


def test_why_there_is_no_backfill():
    assert missing(None, "x") == "there is no backfill 'x': retrofill backfill list"
    assert missing({"message": "too long"}, "x") == "backfill x was rejected: too long"
