"""``make verify``: runs every check in stages and writes the result pages.

A failing stage does not stop the later ones; the exit status is 1 if any failed. Nothing is
skipped: a stage without a required tool (Docker, helm, strace, npm, kcat) fails and names it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Tests that also run on the official images: the services' use of Kafka and Postgres, and TLS.
# Tests of Spark or of the embedded servers would not differ there.
ON_CONTAINERS = (
    "test_bus.py",
    "test_bus_conformance.py",
    "test_store_conformance.py",
    "test_store_conformance_attempts.py",
    "test_store_conformance_deadlines.py",
    "test_store_conformance_locks.py",
    "test_planner.py",
    "test_starter.py",
    "test_starter_batches.py",
)


@dataclass(frozen=True)
class Stage:
    """One command, and what it verifies."""

    name: str
    shows: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> tuple[bool, float]:
        """Returns whether the stage passed, and its duration in seconds."""
        began = time.monotonic()
        done = subprocess.run(self.command, cwd=ROOT, env={**os.environ, **self.environment}, check=False)
        return done.returncode == 0, time.monotonic() - began


def stages(seed: int, workers: int) -> list[Stage]:
    """All stages. Benchmarks come last, when no other stage is using the machine."""
    python = sys.executable
    parallel = ("-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder")
    on_containers = (f"tests/integration/{name}" for name in ON_CONTAINERS)
    return [
        Stage("tests", "every test, the long ones too", (python, "-m", "pytest", "--long", "--no-skips", *parallel)),
        Stage(
            "containers",
            "the services on the official images",
            (python, "-m", "pytest", "--no-skips", *on_containers),
            {"RETROFILL_TEST_STACK": "containers"},
        ),
        Stage("site", "the documentation, no link broken", ("make", "docs")),
        Stage("matrix", "each Spark and Python, into docs/versions.md", (python, "-m", "tests.matrix", "--every")),
        Stage("compose", "the demo in containers", (python, "examples/flights/compose_demo.py", "--days", "30")),
        Stage(
            "mutations", "each invariant, broken on purpose", (python, "-m", "tests.simulation", "--mutation", "all")
        ),
        Stage("simulation", "five minutes of schedules", (python, "-m", "tests.simulation", "--seconds", "300")),
        Stage(
            "chaos",
            "faults on the real servers, into docs/reliability.md",
            (python, "-m", "tests.chaos", "--profile", "verify", "--seed", str(seed), "--reliability"),
        ),
        Stage("bench", "figures beside their peers, into benchmarks/RESULTS.md", (python, "-m", "benchmarks")),
    ]


def main() -> int:
    """Run the stages and print a table of the results."""
    asked = _arguments()
    known = stages(asked.seed, asked.workers)
    names = asked.only.split(",") if asked.only else [stage.name for stage in known]
    if unknown := set(names) - {stage.name for stage in known}:
        _say(f"no stage is called {', '.join(sorted(unknown))}; there are {', '.join(stage.name for stage in known)}")
        return 2
    outcomes = []
    for stage in (stage for stage in known if stage.name in names):
        _say(f"verify: {stage.name}: {stage.shows} (seed {asked.seed})")
        passed, seconds = stage.run()
        outcomes.append(passed)
        _say(f"verify: {stage.name}: {'passed' if passed else 'FAILED'} after {seconds / 60:.1f} minutes")
    _say(f"{sum(outcomes)} passed, {outcomes.count(False)} failed")
    return 0 if all(outcomes) else 1


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - progress output


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.verify", description=__doc__)
    today = int(datetime.now(UTC).strftime("%Y%m%d"))
    parser.add_argument("--seed", type=int, default=today, help="of chaos; the default is the date, as a number")
    parser.add_argument("--workers", type=int, default=2, help="processes of the tests' stage")
    parser.add_argument("--only", default="", help="stages, comma separated")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
