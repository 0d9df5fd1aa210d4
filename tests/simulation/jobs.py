"""Distributes schedules over processes. A schedule's behavior depends on its seed alone."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, islice, takewhile

from retrofill_core.contract.topics import WATCHER
from tests.simulation import shims
from tests.simulation.checks.base import Violation
from tests.simulation.mutations import INVARIANT_OF, applied
from tests.simulation.schedule import Result, run_schedule
from tests.simulation.scheduler import Stuck
from tests.simulation.world import World

# Schedules between two collections of cyclic garbage; older generations are collected less often.
COLLECT_EVERY = 20
COLLECT_ALL_EVERY = 400
# A mutation whose replacements are not called within so many schedules does not fit the code any more.
CALLED_WITHIN = 200
# Invariants about deadlines and callbacks. Most schedules have neither.
ABOUT_DEADLINES = (10, 11)


@dataclass(frozen=True)
class Share:
    """The seeds of one process: every ``jobs``-th one from ``first + number``."""

    first: int
    number: int = 0
    jobs: int = 1
    schedules: int | None = None
    seconds: float | None = None

    def seeds(self) -> Iterator[int]:
        """Seeds of this share, until the schedules or the time run out."""
        end = None if self.seconds is None else time.perf_counter() + self.seconds
        numbers = count(self.number, self.jobs)
        if self.schedules is not None:
            most = self.schedules
            numbers = takewhile(lambda n: n < most, numbers)  # type: ignore[assignment]  # an iterator is enough
        for n in numbers:
            if end is not None and time.perf_counter() >= end:
                return
            yield self.first + n


@dataclass
class Done:
    """Results of one process. ``used`` is CPU time in seconds."""

    results: list[Result] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    used: float = 0.0


def run(share: Share) -> Done:
    """Run a share in this process and print each violation."""
    if share.jobs > 1:
        stay_on_one_processor(share.number)
    done, began = Done(), time.process_time()
    with shims.exchanged(), _collected_between():
        for n, seed in enumerate(share.seeds(), 1):
            try:
                done.results.append(run_schedule(seed))
            except Exception as e:  # noqa: BLE001 - reported with the command that reproduces it
                done.failed.append(seed)
                _tell(seed, e)
            _collect(n)
    done.used = time.process_time() - began
    return done


def run_all(shares: list[Share]) -> list[Done]:
    """Run each share in its own process; a single share runs in this one."""
    if len(shares) == 1:
        return [run(shares[0])]
    with ProcessPoolExecutor(len(shares)) as pool:
        return list(pool.map(run, shares))


@dataclass(frozen=True)
class Found:
    """What found a mutation: the seed, how many schedules it took, and the check that failed."""

    seed: int
    schedules: int
    check: str
    what: str


def find(name: str, share: Share) -> Found | str:
    """The first seed of the share that finds the mutation ``name``, or why there is none.

    Only a violation or a schedule that is stuck finds it: with another exception, the mutation may not
    fit the code and break nothing that a check is for. A seed that also fails without the mutation does
    not count. If the mutation is about deadlines, schedules without deadlines are skipped and not counted.
    What replaces a function must be called within the first schedules.
    """
    other, calls = "", Counter[str]()
    with shims.exchanged(), _collected_between():
        seeds = replace(share, schedules=None).seeds()
        if INVARIANT_OF[name] in ABOUT_DEADLINES:
            seeds = filter(_has_deadlines, seeds)
        for n, seed in enumerate(islice(seeds, share.schedules), 1):
            with applied(name) as patches:
                error = _error_of(seed)
            calls.update(patches.calls)
            if isinstance(error, Violation | Stuck) and _error_of(seed) is None:
                return Found(seed, n, getattr(error, "check", type(error).__name__), str(error)[:150])
            if error is not None:
                other = other or f"; seed {seed} ended with {type(error).__name__}: {error}"
            if n == CALLED_WITHIN and (idle := sorted(each for each in calls if not calls[each])):
                return f"replaces what nothing called in {n} schedules: {', '.join(idle)}{other}"
            _collect(n)
    return f"not found in {share.schedules} schedules{other}"


def _has_deadlines(seed: int) -> bool:
    world = World(seed)
    world.close()
    return WATCHER in world.services


def _error_of(seed: int) -> Exception | None:
    try:
        run_schedule(seed)
    except Exception as e:  # noqa: BLE001 - the caller decides what it means
        return e
    return None


def _tell(seed: int, error: Exception) -> None:
    text = f"seed {seed}: {type(error).__name__}: {error}\n"
    if not isinstance(error, AssertionError):
        text += "".join(traceback.format_exception(error)[-6:])
    sys.stdout.write(f"{text}    repeat it: python -m tests.simulation --seed {seed}\n")
    sys.stdout.flush()


class _collected_between:
    """Disables garbage collection during a schedule, where it takes a third of the time."""

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
        gc.unfreeze()


def _collect(n: int) -> None:
    if n % COLLECT_ALL_EVERY == 0:
        gc.collect()
    elif n % COLLECT_EVERY == 0:
        gc.collect(1)


def stay_on_one_processor(number: int) -> None:
    """Pin the process to one CPU. One thread runs at a time, and switching CPUs is slower."""
    if hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {usable[number % len(usable)]})
