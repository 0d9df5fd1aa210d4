"""Formats of speed, remaining time, ranges and moments in the CLI."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from retrofill.errors import WrongUsage
from retrofill_core.contract.backfills import RunsRetried
from retrofill_core.domain.backfill import Budget
from retrofill_core.domain.estimate import Estimate
from retrofill_core.domain.planning import Intervals, Plan, SkipReason
from retrofill_tools.cli.arguments import read_budget
from retrofill_tools.cli.backfills import retrying
from retrofill_tools.cli.output import cell, cost, counts, duration
from retrofill_tools.cli.output import expectation as preview_line
from retrofill_tools.cli.previewing import would
from retrofill_tools.cli.watching import Progress, Speed, line, render
from retrofill_tools.client.backfills import TimeLeft, missing
from retrofill_tools.client.previews import NO_HISTORY, Expectation, equal_stretches

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
    assert line(check(50), 2.0) == "b running: 50/100 runs ended (50 queued, 50 succeeded), 2.0 runs/s"
    assert line(check(50, state="paused"), 2.0).endswith(", 2.0 runs/s; resume with: retrofill backfill resume b")
    assert line(check(100, state="succeeded"), 2.0) == "b succeeded: 100/100 runs ended (100 succeeded)"


def test_a_line_says_what_only_a_user_can_do() -> None:
    assert line(check(50, state="in_review"), None).endswith(
        "; in review: retrofill backfill diff b, then publish b or discard b"
    )


def test_the_live_display_fits_80_columns():
    out = Console(width=80, record=True, file=StringIO())
    out.print(render(check(50, state="paused"), 1234.5))
    text = out.export_text()
    assert "50/100 (50 %), 1,234.5 runs/s" in text
    assert "retrofill backfill resume b" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_time_left_is_shown_with_its_range():
    expected = replace(check(50), estimate=Estimate(3600, 3000, 4500, 0.5, 7200))
    assert line(expected, None).endswith(", 1:00:00 left (0:50:00 to 1:15:00)")
    out = Console(width=80, record=True, file=StringIO())
    out.print(render(expected, 1234.5))
    assert "1:00:00 left (0:50:00 to 1:15:00)" in out.export_text()


def test_a_budget_is_read_from_its_limits():
    until = datetime(2026, 1, 31, 17, tzinfo=UTC)
    read = read_budget("failed_runs=3, core_hours=10,until=2026-01-31T18:00:00+01:00")
    assert read == Budget(failed_runs=3, core_hours=10, until=until)
    assert read_budget("none") == Budget()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "''"),
        ("failed_runs", "'failed_runs'"),
        ("runs=3", "'runs=3'"),
        ("failed_runs=1,failed_runs=2", "'failed_runs=2'"),
        ("failed_runs=0", "failed_runs"),
        ("core_hours=many", "core_hours"),
        ("until=2026-01-31T18:00:00", "until"),
    ],
)
def test_a_wrong_budget_is_refused_with_the_part_that_is_wrong(text: str, what: str):
    with pytest.raises(WrongUsage, match=r"--budget") as refused:
        read_budget(text)
    assert what in str(refused.value)


def test_what_spark_used_is_one_line():
    used = {"core_seconds": 5400.0, "shuffle_bytes": 2_500_000_000, "rows_read": 1000, "rows_written": None}
    assert cost(used) == "1.50 core-hours, 2.50 GB shuffled, 1,000 rows read"
    assert cost({"core_seconds": None}) is None


def test_a_dry_run_says_where_its_estimate_is_from():
    found = Expectation(TimeLeft(3600.0, 3000.0, 4500.0, 1.0), 2.5, "from 60 runs of the last 2 days")
    assert preview_line(found) == (
        "would take about 1:00:00 (0:50:00 to 1:15:00) and 2.50 core-hours, from 60 runs of the last 2 days"
    )
    assert preview_line(Expectation(None, None, NO_HISTORY)) == NO_HISTORY


def test_neighbours_with_one_outcome_are_one_stretch():
    assert equal_stretches(["run", "run", "in flight", "run"]) == [(0, 2, "run"), (2, 3, "in flight"), (3, 4, "run")]
    assert equal_stretches([]) == []


def test_durations_and_counts():
    assert duration(3723.4) == "1:02:03"
    assert counts({"succeeded": 1000, "failed": 2, "queued": 0}) == "2 failed, 1,000 succeeded"


def test_when_something_happened_is_to_the_second_also_at_midnight():
    assert cell(datetime(2024, 1, 1, tzinfo=UTC)) == "2024-01-01 00:00:00"
    assert cell(datetime(2024, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))) == "2024-01-01 00:00:00"


@pytest.mark.parametrize(
    ("skipped", "said"),
    [
        ([None] * 92, "would create 92 runs"),
        ([None], "would create 1 run"),
        ([None, SkipReason.NOT_OVER_YET], "would create 1 run, none for 1 interval (1 not over yet)"),
        (
            [None] * 1000 + [SkipReason.ALREADY_EXISTS] * 2 + [SkipReason.NOT_OVER_YET],
            "would create 1,000 runs, none for 3 intervals (2 already exists, 1 not over yet)",
        ),
    ],
)
def test_what_a_plan_would_do(skipped: list[SkipReason | None], said: str):
    days = [START + timedelta(days=n) for n in range(len(skipped) + 1)]
    assert would("create", Plan(Intervals(days[:-1], days[1:]), skipped)) == said


ABOUT = {"backfill_id": "b", "pipeline": "p"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"code_sha256": "a" * 64}, "with the code that the backfill was planned with (aaaaaaaaaaaa)"),
        ({}, "with the code that the backfill was planned with (not shipped, imported from its path)"),
        (
            {"code_sha256": "a" * 64, "newer_code_sha256": "b" * 64},
            "with the code that the backfill was planned with (aaaaaaaaaaaa); newer code is applied (bbbbbbbbbbbb): "
            "--latest-code uses it",
        ),
        (
            {"code_sha256": "b" * 64, "latest_code": True},
            "with the code that is applied when they start (now: bbbbbbbbbbbb)",
        ),
    ],
)
def test_a_retry_says_which_code_it_uses(more: dict[str, Any], said: str):
    assert retrying("b", RunsRetried(runs=2, **ABOUT, **more)) == f"backfill b: retrying 2 runs {said}"


def test_a_retried_undo_has_no_code():
    assert retrying("b", RunsRetried(runs=1, undoes="a", **ABOUT)) == "backfill b: retrying 1 run"


def test_what_users_wrote_is_no_markup():
    assert cell("[red]x") == "\\[red]x"
    assert cell("failed") == "[red]failed[/]"


def test_why_there_is_no_backfill():
    assert missing(None, "x") == "there is no backfill 'x': retrofill backfill list"
    assert missing({"message": "too long"}, "x") == "backfill x was rejected: too long"
