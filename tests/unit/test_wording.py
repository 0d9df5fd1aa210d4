"""Numbers, ordinals and ranges in the one form that all commands, messages and pages use."""

from __future__ import annotations

import json
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from tests.support.installation import ROOT

from retrofill.wording import moment, ordinal, plural, span, times

# The console's tests read them, too.
RANGES = json.loads((ROOT / "tests" / "support" / "ranges.json").read_text("utf-8"))


@pytest.mark.parametrize(("start", "end", "zone", "written"), RANGES)
def test_a_range_is_in_its_zone_and_includes_both_ends(start: str, end: str, zone: str, written: str) -> None:
    begins, ends = (datetime.fromisoformat(each) for each in (start, end))
    assert span(begins, ends, ZoneInfo(zone)) == written
    assert span(begins.astimezone(ZoneInfo(zone)), ends.astimezone(ZoneInfo(zone))) == written


@pytest.mark.parametrize(
    ("at", "zone", "written"),
    [
        ("2024-01-01T05:00:00Z", "America/New_York", "2024-01-01"),
        ("2024-01-01T05:00:00Z", "UTC", "2024-01-01 05:00"),
        ("2024-01-01T05:00:07Z", "UTC", "2024-01-01 05:00:07"),
        ("2024-09-08T04:00:00Z", "America/Santiago", "2024-09-08"),
        ("2024-11-03T05:30:00Z", "America/New_York", "2024-11-03 01:30-04:00"),
        ("2024-11-03T06:30:00Z", "America/New_York", "2024-11-03 01:30-05:00"),
        ("0001-01-02T00:00:00Z", "UTC", "0001-01-02"),
    ],
)
def test_a_logical_date_is_as_short_as_possible(at: str, zone: str, written: str) -> None:
    found = datetime.fromisoformat(at)
    assert moment(found, ZoneInfo(zone)) == moment(found.astimezone(ZoneInfo(zone))) == written


@pytest.mark.parametrize(
    ("count", "written"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (11, "11 runs"), (1000, "1,000 runs")]
)
def test_a_number_and_its_noun(count: int, written: str) -> None:
    assert plural(count, "run") == written


def test_nouns_that_do_not_end_with_s() -> None:
    assert [plural(count, "has", "have") for count in (1, 2)] == ["1 has", "2 have"]


@pytest.mark.parametrize(
    ("number", "written"),
    [
        *((1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (10, "10th"), (11, "11th"), (12, "12th"), (13, "13th")),
        *((20, "20th"), (21, "21st"), (22, "22nd"), (23, "23rd"), (101, "101st"), (111, "111th"), (112, "112th")),
        *((113, "113th"), (1001, "1,001st"), (1011, "1,011th")),
    ],
)
def test_ordinals(number: int, written: str) -> None:
    assert ordinal(number) == written


def test_how_often() -> None:
    assert [times(n) for n in (1, 2, 1000)] == ["once", "2 times", "1,000 times"]
