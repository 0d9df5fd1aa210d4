"""Replaced output stays as long as the publication that replaced it said, whoever clears up later."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from retrofill.outputs import kept

TODAY = kept.today()


def put_away(area: Path, name: str, *days: int) -> None:
    """Keep a replaced output, by publishers with these settings."""
    for number, each in enumerate(days):
        (area / f"{name}-{number}").mkdir(parents=True)
        kept.keep(area / f"{name}-{number}", area, each)


@pytest.mark.parametrize(
    ("said", "ago", "stays"),
    [
        pytest.param((7,), 6, True, id="before"),
        pytest.param((7,), 7, True, id="on the last day"),
        pytest.param((7,), 8, False, id="after"),
        pytest.param((1, 30, 7), 8, True, id="the longest of several publishers"),
        pytest.param((1, 30, 7), 31, False, id="and no longer"),
    ],
)
def test_it_stays_as_long_as_was_said(tmp_path: Path, said: tuple[int, ...], ago: int, stays: bool) -> None:
    area = tmp_path / "_retrofill"
    put_away(area, "day=1@1-aa", *said)
    today = area / "kept" / TODAY.isoformat()
    today.mkdir(parents=True, exist_ok=True)
    then = today.rename(area / "kept" / (TODAY - timedelta(days=ago)).isoformat())
    # What was kept today is nobody's business.
    put_away(area, "day=2@2-aa", 1)
    kept.forget_old(area)
    kept.sweep(area)
    assert then.exists() == stays
    assert (today / "day=2@2-aa-0").is_dir()
