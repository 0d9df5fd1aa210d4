"""The chaos report: missed targets stand out, and the page's section is replaced only between its
markers.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.chaos.oracle import Violation
from tests.chaos.plays import PLAYS
from tests.chaos.profiles import PROFILES, SMALLER
from tests.chaos.reliability import MARKERS, PAGE, commit, section
from tests.chaos.report import Result
from tests.support.pages import parted, rewritten

BEGIN, END = MARKERS


def result(
    *recoveries: float, violations: int = 0, kind: str = "a service killed", name: str = "kills", seed: int = 3
) -> Result:
    """A result of one scenario."""
    broken = [Violation("a_promise", "what")] * violations
    faults = Counter({"kill -9 of backfill-planner": 2})
    return Result(name, seed, 42.0, faults, 1500, 50, broken, {kind: [*recoveries]}, {"samples": seed})


def test_a_missed_aim_is_marked() -> None:
    assert "missed" not in section([result(14.9)], "full").replace("none missed", "")
    fields = section([result(1.0, 15.1), result(29.0, kind="Kafka killed")], "full")
    assert "1.0, 15.1 s (**missed**: the aim is 15 s)" in fields
    assert "; 1 missed." in fields


def test_the_section_says_what_was_tried_and_what_broke() -> None:
    fields = section([result(1.0), result(1.0, violations=2)], "verify")
    assert "PROFILE=verify`" in fields
    assert ": 100 runs and 3,000 events checked, 2 violations (in kills)." in fields
    assert f"| {commit()} |" in fields
    assert "| all |  | 84 | 4 | 100 | 3000 | 2 |" in fields


def test_a_scenario_played_again_replaces_its_row_only() -> None:
    before = section([result(20.0, name="kills"), result(20.0, name="wal-full", violations=1)], "verify")
    again = section([result(1.0, name="wal-full", seed=4)], "verify", before)
    assert again == section([result(20.0, name="kills"), result(1.0, name="wal-full", seed=4)], "verify")
    assert [line for line in again.splitlines() if ": samples" in line] == ["kills: samples 3", "wal-full: samples 4"]


def test_rows_of_another_profile_do_not_stay() -> None:
    one = section([result(1.0, name="wal-full")], "verify")
    assert section([result(1.0, name="wal-full")], "verify", section([result(1.0)], "full")) == one


def test_the_section_goes_between_the_markers() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    new = rewritten(page, *MARKERS, "new")
    assert new == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert rewritten(new, *MARKERS, "new") == new


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        rewritten(page, *MARKERS, "new")


def test_the_page_has_its_markers() -> None:
    assert parted(PAGE.read_text(), *MARKERS)[1].strip()


def test_the_smaller_profile_plays_all_there_is() -> None:
    assert SMALLER.keys() <= PLAYS.keys()
    assert all(PLAYS.keys() <= plays.keys() for plays in PROFILES.values())
