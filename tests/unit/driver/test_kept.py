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
    ("said", "ago", "setting", "stays"),
    [
        pytest.param((7,), 6, None, True, id="a purge, before"),
        pytest.param((7,), 7, None, True, id="a purge, on the last day"),
        pytest.param((7,), 8, None, False, id="a purge, after"),
        pytest.param((30,), 8, 1, True, id="a publication that keeps its own for less"),
        pytest.param((30,), 8, 0, True, id="or for no time"),
        pytest.param((1,), 8, 30, False, id="or for longer"),
        pytest.param((1, 30, 7), 8, 7, True, id="the longest of several publishers"),
        pytest.param((1, 30, 7), 31, 7, False, id="and no longer"),
        pytest.param((), 8, 7, False, id="of an earlier release, beside a publication"),
        pytest.param((), 8, 30, True, id="which keeps it for longer"),
        pytest.param((), 800, None, True, id="of an earlier release, by a purge"),
    ],
)
def test_it_stays_as_long_as_was_said(
    tmp_path: Path, said: tuple[int, ...], ago: int, setting: int | None, stays: bool
) -> None:
    area = tmp_path / "_retrofill"
    put_away(area, "day=1@1-aa", *said)
    today = area / "kept" / TODAY.isoformat()
    today.mkdir(parents=True, exist_ok=True)
    then = today.rename(area / "kept" / (TODAY - timedelta(days=ago)).isoformat())
    # What was kept today is nobody's business.
    put_away(area, "day=2@2-aa", 1)
    kept.forget_old(area, setting)
    kept.sweep(area)
    assert then.exists() == stays
    assert (today / "day=2@2-aa-0").is_dir()
