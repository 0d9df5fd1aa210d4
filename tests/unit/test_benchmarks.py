"""Benchmarks run for hours and seldom, so that they can start is found here."""

from __future__ import annotations

from importlib import import_module

import pytest
from benchmarks.__main__ import NAMES
from benchmarks.core import Benchmark


@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_can_be_started(name: str) -> None:
    assert isinstance(import_module(f"benchmarks.{name}").BENCHMARK, Benchmark)


def test_the_comparison_with_peers_can_be_started() -> None:
    import_module("benchmarks.peers.__main__")
