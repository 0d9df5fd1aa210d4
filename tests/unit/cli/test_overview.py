"""The screen of ``retrofill watch`` fits a terminal, and counts what does not."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

from rich.console import Console

from retrofill_tools.cli.watching import Overview, render_all
from retrofill_tools.client.attempts import LiveAttempt
from retrofill_tools.client.backfills import ActiveBackfill
from retrofill_tools.client.hosts import Host

NOW = datetime(2024, 1, 5, 12, 30, tzinfo=UTC)


def backfill(n: int, **by_state: int) -> ActiveBackfill:
    return ActiveBackfill(f"backfill-{n}", "flights_daily", "running", sum(by_state.values()), NOW, by_state)


def attempt(n: int) -> LiveAttempt:
    return LiveAttempt(
        id=n,
        backfill_id=f"backfill-{n}",
        mode="each",
        runs=12,
        state="running",
        outcome=None,
        host="run-starter-7d9f8b6c5-x2x4z-1",
        host_id=1,
        claimed_at=NOW,
        began_at=NOW,
        ended_at=None,
        spark_app_id=None,
        spark_ui=None,
        reason=None,
        pipeline="flights_daily",
        first_interval=datetime(2024, 1, 1, 5, tzinfo=UTC),
        timezone="America/New_York",
        seconds=75.4,
    )


HOST = Host(
    id=1,
    name="run-starter-7d9f8b6c5-x2x4z-1",
    pool="default",
    started_at=NOW,
    submits=True,
    note=None,
    python=None,
    spark=None,
    alive=True,
    busy=3,
    warm=1,
    cold=0,
)


def screen(backfills: int, attempts: int, hosts: int = 1, height: int = 24, more: int = 0) -> list[str]:
    """``more``: backfills and attempts that were not read."""
    text = StringIO()
    out = Console(width=80, height=height, file=text, force_terminal=True, color_system=None)
    found = Overview(
        at=NOW,
        active_backfills=backfills + more,
        live_attempts=attempts + more,
        backfills=[backfill(n, succeeded=40, failed=1, queued=59) for n in range(backfills)],
        attempts=[attempt(n) for n in range(attempts)],
        hosts=[HOST] * hosts,
    )
    out.print(render_all(found, {}, out))
    return text.getvalue().splitlines()


def test_everything_is_on_it() -> None:
    lines = screen(2, 3)
    text = "\n".join(lines)
    assert lines[0].startswith("retrofill  2 active backfills, 3 live attempts  2024-01-05 12:30:00 UTC")
    for word in (
        "backfill-1",
        "flights_daily",
        "41/100",
        "2024-01-01",
        "0:01:15",
        "running",
        "run-starter-7d9f8b6c5-x2x4z-1",
    ):
        assert word in text
    assert all(len(line) <= 80 for line in lines)


def test_what_does_not_fit_is_counted() -> None:
    lines = screen(90, 70)
    assert len(lines) <= 24
    hidden = [line for line in lines if line.startswith("… and")]
    assert len(hidden) == 2
    shown = sum("flights_daily" in line for line in lines)
    assert f"… and {90 - shown} more backfills" in hidden[0]
    assert shown >= 5 and sum("0:01:15" in line for line in lines) >= 5


def test_all_are_counted_though_only_some_are_read() -> None:
    lines = screen(2, 3, more=150)
    assert lines[0].startswith("retrofill  152 active backfills, 153 live attempts")
    assert "… and 150 more backfills" in lines
    assert "… and 150 more attempts" in lines


def test_few_attempts_leave_their_room_to_backfills() -> None:
    lines = screen(90, 1)
    assert len(lines) <= 24
    assert sum("flights_daily" in line for line in lines) >= 10


def test_nothing_is_active() -> None:
    text = "\n".join(screen(0, 0, hosts=0))
    assert "no active backfills" in text and "no live attempts" in text
    assert "no run-starter is alive: nothing starts" in text
