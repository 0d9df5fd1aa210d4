"""Estimates and costs for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrofill_core.domain.estimate import Estimate
from retrofill_tools.cli.output import duration
from retrofill_tools.client.previews import Expectation


def left(found: Estimate) -> str:
    """The time left and its range."""
    return f"{duration(found.seconds)} left ({duration(found.low)} to {duration(found.high)})"


def cost(used: Mapping[str, Any]) -> str | None:
    """What Spark used, in one line; ``None``: it did not tell."""
    if used.get("core_seconds") is None:
        return None
    parts = [f"{used['core_seconds'] / 3600:,.2f} core-hours"]
    if used.get("shuffle_bytes") is not None:
        parts.append(f"{used['shuffle_bytes'] / 1e9:,.2f} GB shuffled")
    parts += [
        f"{used[name]:,} {name.replace('_', ' ')}"
        for name in ("rows_read", "rows_written")
        if used.get(name) is not None
    ]
    return ", ".join(parts)


def line(found: Expectation) -> str:
    """A preview for people."""
    times = found.estimate
    if times is None:
        return found.why
    took = f"would take about {duration(times.seconds)} ({duration(times.low)} to {duration(times.high)})"
    hours = "" if found.core_hours is None else f" and {found.core_hours:,.2f} core-hours"
    return f"{took}{hours}, {found.why}"
