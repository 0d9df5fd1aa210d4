"""A budget is used up at its amount, not before."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from retrofill_core.domain.backfill import Budget, Spent, used_up

NOW = datetime(2026, 3, 2, 18, tzinfo=UTC)
NOTHING = Spent(0, 0.0, NOW)


@pytest.mark.parametrize(
    ("budget", "spent", "limit"),
    [
        (Budget(), Spent(10**6, 1e12, NOW), None),
        (Budget(failed_runs=3), replace(NOTHING, failed_runs=2), None),
        (Budget(failed_runs=3), replace(NOTHING, failed_runs=3), "failed_runs"),
        (Budget(failed_runs=3), replace(NOTHING, core_seconds=1e9), None),
        (Budget(core_hours=1.5), replace(NOTHING, core_seconds=5399), None),
        (Budget(core_hours=1.5), replace(NOTHING, core_seconds=5400), "core_hours"),
        (Budget(until=NOW + timedelta(microseconds=1)), NOTHING, None),
        (Budget(until=NOW), NOTHING, "until"),
    ],
)
def test_a_limit_is_reached_exactly(budget: Budget, spent: Spent, limit: str | None) -> None:
    found = used_up(budget, spent)
    assert found == limit if found is None else limit is not None and found.endswith(f"({limit})")


def test_the_reason_says_how_much_was_used() -> None:
    assert used_up(Budget(core_hours=10), Spent(0, 36_360, NOW)) == (
        "10.10 core-hours were used, of at most 10 (core_hours)"
    )


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+05:00"])
def test_a_moment_at_the_end_of_the_calendar_can_be_stored_and_read_in_every_zone(text: str) -> None:
    until = Budget.model_validate({"until": text}).until
    assert until is not None
    for zone in ("UTC", "Etc/GMT+12", "Pacific/Kiritimati"):
        assert until.astimezone(ZoneInfo(zone)) == until
