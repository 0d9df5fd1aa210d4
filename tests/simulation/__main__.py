"""Run schedules: ``python -m tests.simulation --seed N`` repeats one, ``--seconds 60`` or ``--schedules 500`` runs many.

Prints schedules a minute, faults by kind, events checked and violations; the exit status is 1 where there was one. Each
violation comes with the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter

from tests.simulation import shims
from tests.simulation.mutations import MUTATIONS, applied
from tests.simulation.schedule import Result, run_schedule


def main() -> int:
    """Run what the arguments say."""
    given = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of texts is part of a schedule.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    _stay_on_one_processor()
    if given.seed is not None:
        given.first, given.schedules = given.seed, 1
    if given.mutation is not None:
        names = list(MUTATIONS) if given.mutation == "all" else [given.mutation]
        found = [_find(name, given.first, given.schedules or 200) for name in names]
        return 0 if all(found) else 1
    with shims.exchanged():
        return _many(given.first, given.schedules, given.seconds)


def _stay_on_one_processor() -> None:
    """One thread runs at a time: to pass the turn to one on another processor costs more."""
    if hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {usable[os.getpid() % len(usable)]})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat this schedule")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--schedules", type=int, help="so many schedules")
    parser.add_argument("--seconds", type=float, help="for so long")
    parser.add_argument(
        "--mutation", choices=["all", *MUTATIONS], help="break the services' code so, and see which seed finds it"
    )
    return parser.parse_args()


def _find(name: str, first: int, schedules: int) -> bool:
    """Whether the simulation finds the mutation, and how fast; the exit status is 0 where it does."""
    began = time.perf_counter()
    with shims.exchanged(), applied(name):
        for seed in range(first, first + schedules):
            try:
                run_schedule(seed)
            except Exception as e:  # noqa: BLE001 - whatever it breaks is what is looked for
                what = f"{type(e).__name__}: {e}"[:150]
                seconds = time.perf_counter() - began
                sys.stdout.write(f"{name}: found by seed {seed} after {seconds:.1f} s: {what}\n")
                return True
    sys.stdout.write(f"{name}: not found in {schedules} schedules\n")
    return False


def _many(first: int, schedules: int | None, seconds: float | None) -> int:
    if schedules is None and seconds is None:
        seconds = 60.0
    results: list[Result] = []
    failed: list[int] = []
    began, used = time.perf_counter(), time.process_time()
    seed = first
    while (schedules is None or seed - first < schedules) and (
        seconds is None or time.perf_counter() - began < seconds
    ):
        try:
            results.append(run_schedule(seed))
        except Exception as e:  # noqa: BLE001 - told below, with how to repeat it
            failed.append(seed)
            _tell(seed, e)
        seed += 1
    _summary(results, failed, time.perf_counter() - began, time.process_time() - used)
    return 1 if failed else 0


def _tell(seed: int, error: Exception) -> None:
    sys.stdout.write(f"seed {seed}: {type(error).__name__}: {error}\n")
    if not isinstance(error, AssertionError):
        sys.stdout.write("".join(traceback.format_exception(error)[-6:]))
    sys.stdout.write(f"    repeat it: python -m tests.simulation --seed {seed}\n")


def _summary(results: list[Result], failed: list[int], seconds: float, used: float) -> None:
    count = len(results) + len(failed)
    injected: Counter[str] = sum((r.injected for r in results), Counter())
    lines = [
        f"{count} schedules in {seconds:.1f} s: {60 * count / seconds:,.0f} a minute, "
        f"{60 * count / used:,.0f} a minute of processor time",
        f"{sum(r.steps for r in results):,} steps, {sum(r.statements for r in results):,} statements, "
        f"{sum(r.commits for r in results):,} commits and {sum(r.events for r in results):,} events checked",
        "faults: " + ", ".join(f"{name} {number}" for name, number in sorted(injected.items())),
        f"violations: {len(failed)}" + (f" (seeds {', '.join(map(str, failed))})" if failed else ""),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
