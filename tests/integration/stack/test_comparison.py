"""Our side of the comparison with peers, on a stack as there, with few runs: each figure is a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.peers.ours import stack

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_each_figure_of_the_comparison_is_measured(tmp_path: Path) -> None:
    with stack(tmp_path, deadline_seconds=1) as ours:
        # So many that they are not over before they are cancelled.
        assert ours.accept(1000, 0) > 0
        assert ours.first_run() > 0
        assert ours.runs_a_second(4, 0) > 0
        assert all(seconds > 0 for seconds in ours.deadlines(10, 0))
