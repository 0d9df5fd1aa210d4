"""The intervals of a pipeline that coverage is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.definitions import daily

from retrofill_tools.client.coverage import MOST, intervals_until

NOW = datetime(2024, 3, 10, 12, 30, 30, tzinfo=UTC)
START = datetime(2024, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("more", "start", "count", "last"),
    [
        ({}, START, 9, datetime(2024, 3, 10, tzinfo=UTC)),
        ({"end": "2024-03-04"}, START, 4, datetime(2024, 3, 5, tzinfo=UTC)),
        ({"end": "2024-02-04"}, START, 0, None),
        ({"schedule": "@weekly"}, START, 1, datetime(2024, 3, 10, tzinfo=UTC)),
        ({"schedule": "@hourly"}, START, 9 * 24 + 12, datetime(2024, 3, 10, 12, tzinfo=UTC)),
        ({}, None, 0, None),
        ({}, datetime(2025, 1, 1, tzinfo=UTC), 0, None),
        ({"end": "9999-12-31"}, START, 9, datetime(2024, 3, 10, tzinfo=UTC)),
    ],
)
def test_intervals_that_are_over_are_there(more: dict[str, Any], start: datetime, count: int, last: datetime) -> None:
    found, cut = intervals_until(daily(**more), start, NOW)
    assert (len(found.starts), found.ends[-1] if found.ends else None, cut) == (count, last, False)


def test_of_too_many_the_latest_are_there() -> None:
    found, cut = intervals_until(daily(schedule="* * * * *"), datetime(2000, 1, 1, tzinfo=UTC), NOW)
    assert (cut, found.ends[-1]) == (True, NOW.replace(second=0))
    assert MOST / 2 < len(found.starts) <= MOST
