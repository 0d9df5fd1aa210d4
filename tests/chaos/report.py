"""The result of one scenario, and the table of all results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.oracle import Violation, fields


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


# Servers must restart before anything can progress. All other kinds are services.
AIMS = {"Kafka": 30.0, "Postgres": 30.0, "Spark Connect": 30.0}
SERVICE_AIM = 15.0


def aim_of(kind: str) -> float:
    """Seconds after a heal of this kind within which work must progress again."""
    return next((seconds for name, seconds in AIMS.items() if name in kind), SERVICE_AIM)


def table(results: list[Result]) -> str:
    """A Markdown table: faults by kind, checks, violations and recovery times."""
    lines = [
        "| scenario | seed | seconds | faults | runs | events checked | violations | moves again after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        faults = ", ".join(f"{count} × {kind}" for kind, count in sorted(_by_kind(each.faults).items()))
        heals = ", ".join(_heal(kind, times) for kind, times in each.recoveries.items())
        lines.append(
            f"| {each.name} | {each.seed} | {each.seconds:.0f} | {faults} | {each.runs} | {each.events} "
            f"| {len(each.violations)} | {heals} |"
        )
    lines.append(_total(results))
    lines += ["", *(f"{r.name}: {name} {value}" for r in results for name, value in r.facts.items())]
    return "\n".join(lines)


def missed_aims(results: list[Result]) -> int:
    """Number of kinds of heals that missed their aim."""
    return sum(max(times) > aim_of(kind) for each in results for kind, times in each.recoveries.items())


def _by_kind(faults: Counter[str]) -> Counter[str]:
    """Count all crash points of one service together."""
    kinds: Counter[str] = Counter()
    for kind, count in faults.items():
        what, at, _ = kind.partition(" at ")
        kinds[f"{what} at a crash point" if at and ":" in kind else kind] += count
    return kinds


def _heal(kind: str, times: list[float]) -> str:
    late = f" (**missed**: the aim is {aim_of(kind):.0f} s)" if max(times) > aim_of(kind) else ""
    return f"{kind}: {', '.join(f'{seconds:.1f}' for seconds in times)} s{late}"


def _total(results: list[Result]) -> str:
    return (
        f"| all | | {sum(r.seconds for r in results):.0f} | {sum(sum(r.faults.values()) for r in results)} "
        f"| {sum(r.runs for r in results)} | {sum(r.events for r in results)} "
        f"| {sum(len(r.violations) for r in results)} | |"
    )
