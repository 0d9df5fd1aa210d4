"""The result of one scenario, and the table of all results."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.oracle import Violation, fields
from tests.support import pages


@dataclass
class Result:
    """One scenario with one seed. Recovery times are in seconds, by what was healed."""

    name: str
    seed: int
    seconds: float
    faults: Counter[str]
    events: int
    runs: int
    violations: list[Violation]
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    profile: str = ""
    """The sizes, where they are not the full ones."""

    @property
    def repeat(self) -> str:
        """The command that reproduces this result."""
        return f"make chaos SEED={self.seed} ONLY={self.name}{f' PROFILE={self.profile}' if self.profile else ''}"

    def explain(self) -> str:
        """Describe a failure: what broke, with which seed, and how to reproduce it."""
        return f"seed {self.seed}, again with: {self.repeat}\n{fields(self.violations)}"


# Servers must restart before anything can progress; a receiver that was away is asked once a minute. All others are services.
AIMS = {"Kafka": 30.0, "Postgres": 30.0, "Spark Connect": 30.0, "receiver": 75.0}
SERVICE_AIM = 15.0
MISSED = "**missed**"


def aim_of(kind: str) -> float:
    """Seconds after a heal of this kind within which work must progress again."""
    return next((seconds for name, seconds in AIMS.items() if name in kind), SERVICE_AIM)


HEADS = ("scenario", "seed", "seconds", "faults", "runs", "events checked", "violations", "moves again after")


def row(each: Result) -> list[str]:
    """The cells of one result: faults by kind, checks, violations and recovery times."""
    faults = ", ".join(f"{count} × {kind}" for kind, count in sorted(_by_kind(each.faults).items()))
    heals = ", ".join(_heal(kind, times) for kind, times in each.recoveries.items())
    return [
        each.name, str(each.seed), f"{each.seconds:.0f}", faults,
        str(each.runs), str(each.events), str(len(each.violations)), heals,
    ]  # fmt: skip


def table(rows: list[list[str]], *more: str) -> str:
    """A Markdown table of rows with their total. ``more``: heads of further columns."""
    return pages.table([*HEADS, *more], [*rows, [*_total(rows), *("" for _ in more)]])


def facts(results: list[Result]) -> list[str]:
    """A line for each fact that a scenario reports."""
    return [f"{each.name}: {name} {value}" for each in results for name, value in each.facts.items()]


def total(rows: list[list[str]], head: str) -> int:
    """The sum of a column of numbers."""
    return sum(int(row[HEADS.index(head)]) for row in rows)


def _by_kind(faults: Counter[str]) -> Counter[str]:
    """Count all crash points of one service together."""
    kinds: Counter[str] = Counter()
    for kind, count in faults.items():
        what, at, _ = kind.partition(" at ")
        kinds[f"{what} at a crash point" if at and ":" in kind else kind] += count
    return kinds


def _heal(kind: str, times: list[float]) -> str:
    late = f" ({MISSED}: the aim is {aim_of(kind):.0f} s)" if max(times) > aim_of(kind) else ""
    return f"{kind}: {', '.join(f'{seconds:.1f}' for seconds in times)} s{late}"


def _total(rows: list[list[str]]) -> list[str]:
    seconds, *checked = (str(total(rows, head)) for head in ("seconds", "runs", "events checked", "violations"))
    # Each fault begins with its count.
    faults = sum(int(count) for row in rows for count in re.findall(r"(\d+) × ", row[HEADS.index("faults")]))
    return ["all", "", seconds, str(faults), *checked, ""]
