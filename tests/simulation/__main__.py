"""Run simulated schedules.

``python -m tests.simulation --seed N`` repeats one schedule; ``--seconds 60`` or ``--schedules
500`` runs many. Prints schedules per minute, injected faults by kind, events checked and
violations. Each violation is printed with the command that reproduces it, and the exit status is
then 1. ``--jobs`` sets the number of processes that share the seeds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.jobs import Done, Found, Share, find, run_all, stay_on_one_processor
from tests.simulation.mutations import INVARIANT_OF, MUTATIONS

# Every mutation must be found within this many schedules.
MUTATED_SCHEDULES = 1000
# Schedules with this many planned runs or more are counted together.
MANY = 6


def main() -> int:
    given = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Set iteration order is part of a schedule, so the hash seed must be fixed at startup.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    if given.mutation is not None:
        names = list(MUTATIONS) if "all" in given.mutation else given.mutation
        return (
            0 if _find_all(names, Share(given.first, schedules=given.schedules or MUTATED_SCHEDULES), given.jobs) else 1
        )
    if given.seed is not None:
        return _many(given.seed, 1, None, 1)
    if given.schedules is None and given.seconds is None:
        given.seconds = 60.0
    return _many(given.first, given.schedules, given.seconds, given.jobs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat this schedule")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--schedules", type=int, help="so many schedules")
    parser.add_argument("--seconds", type=float, help="for so long")
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, help=f"so many processes at a time (default {cores})")
    parser.add_argument(
        "--mutation",
        nargs="+",
        choices=["all", *MUTATIONS],
        help="break the services' code so, and see which seed finds it",
    )
    return parser.parse_args()


def _find_all(names: list[str], share: Share, jobs: int) -> bool:
    """Print which seed and which check find each mutation. Returns whether all were found."""
    width = max(map(len, names))
    with ProcessPoolExecutor(min(jobs, len(names))) as pool:
        asked = {name: pool.submit(find, name, share) for name in names}
        for name, answer in asked.items():
            found = answer.result()
            said = found
            if isinstance(found, Found):
                said = f"found by {found.check}, seed {found.seed}, after {found.schedules} schedules: {found.what}"
            sys.stdout.write(f"{INVARIANT_OF[name]:>2}  {name:<{width}}  {said}\n")
            sys.stdout.flush()
    return all(isinstance(answer.result(), Found) for answer in asked.values())


def _many(first: int, schedules: int | None, seconds: float | None, jobs: int) -> int:
    if jobs == 1:
        stay_on_one_processor(os.getpid())
    began = time.perf_counter()
    done = run_all([Share(first, number, jobs, schedules, seconds) for number in range(jobs)])
    _summary(done, time.perf_counter() - began)
    return 1 if any(each.failed for each in done) else 0


def _summary(done: list[Done], seconds: float) -> None:
    results = [result for each in done for result in each.results]
    failed = sorted(seed for each in done for seed in each.failed)
    count, used = len(results) + len(failed), sum(each.used for each in done)
    injected: Counter[str] = sum((r.injected for r in results), Counter())
    lines = [
        f"{count} schedules in {seconds:.1f} s by {len(done)} processes: {60 * count / seconds:,.0f} a minute, "
        f"{60 * count / used:,.0f} a minute of processor time",
        f"{sum(r.steps for r in results):,} steps, {sum(r.statements for r in results):,} statements, "
        f"{sum(r.commits for r in results):,} commits and {sum(r.events for r in results):,} events checked",
        "runs planned: " + _distribution(r.runs for r in results),
        "faults: " + ", ".join(f"{name} {number}" for name, number in sorted(injected.items())),
        f"violations: {len(failed)}" + (f" (seeds {', '.join(map(str, failed))})" if failed else ""),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _distribution(counts: Iterable[int]) -> str:
    """Share of schedules by number of planned runs."""
    found = Counter(str(n) if n < MANY else f"{MANY} and more" for n in counts)
    total = sum(found.values()) or 1
    return ", ".join(
        f"{name}: {100 * found[name] / total:.0f}%" for name in sorted(found, key=lambda n: int(n.split()[0]))
    )


if __name__ == "__main__":
    sys.exit(main())
