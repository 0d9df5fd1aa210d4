"""Schedules shared out to processes: which seed runs where is decided by its number, and what it does by the seed alone."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, takewhile

from retrofill.contract.topics import WATCHER
from tests.simulation import shims
from tests.simulation.mutations import INVARIANT_OF, applied
from tests.simulation.schedule import Result, run_schedule
from tests.simulation.world import World

# Cyclic garbage is collected between schedules, and then of several at once: what has lived for long only now and then.
COLLECT_EVERY = 20
COLLECT_ALL_EVERY = 400
# Invariants of deadlines and callbacks: most schedules have none.
ABOUT_DEADLINES = (10, 11)


@dataclass(frozen=True)
class Share:
    """What one of ``jobs`` processes runs: every ``jobs``-th seed from ``first + number``."""

    first: int
    number: int = 0
    jobs: int = 1
    schedules: int | None = None
    seconds: float | None = None

    def seeds(self) -> Iterator[int]:
        """Its seeds, as long as there are schedules and time left."""
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
    """What a process has run. ``used``: seconds of processor time."""

    results: list[Result] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    used: float = 0.0


def run(share: Share) -> Done:
    """Run a share here, and say which seeds break an invariant."""
    if share.jobs > 1:
        stay_on_one_processor(share.number)
    done, began = Done(), time.process_time()
    with shims.exchanged(), _collected_between():
        for n, seed in enumerate(share.seeds(), 1):
            try:
                done.results.append(run_schedule(seed))
            except Exception as e:  # noqa: BLE001 - told here, with how to repeat it
                done.failed.append(seed)
                _tell(seed, e)
            _collect(n)
    done.used = time.process_time() - began
    return done


def run_all(shares: list[Share]) -> list[Done]:
    """Run each share in a process of its own; a single one here."""
    if len(shares) == 1:
        return [run(shares[0])]
    with ProcessPoolExecutor(len(shares)) as pool:
        return list(pool.map(run, shares))


@dataclass(frozen=True)
class Found:
    """What found a mutation: a seed, the so-and-so-many-th schedule, and the check that did not hold."""

    seed: int
    schedules: int
    check: str
    what: str


def find(name: str, share: Share) -> Found | None:
    """The first seed of the share that finds the mutation ``name``; ``None``: none does.

    A seed that breaks something without the mutation as well has not found it. Schedules without deadlines are left out, and
    not counted, where the mutation is about them.
    """
    with shims.exchanged(), _collected_between():
        seeds = (seed for seed in share.seeds() if INVARIANT_OF[name] not in ABOUT_DEADLINES or _has_deadlines(seed))
        for n, seed in enumerate(seeds, 1):
            with applied(name):
                error = _error_of(seed)
            if error is not None and _error_of(seed) is None:
                return Found(seed, n, getattr(error, "check", type(error).__name__), str(error)[:150])
            _collect(n)
    return None


def _has_deadlines(seed: int) -> bool:
    world = World(seed)
    world.close()
    return WATCHER in world.services


def _error_of(seed: int) -> Exception | None:
    try:
        run_schedule(seed)
    except Exception as e:  # noqa: BLE001 - whatever it breaks is what is looked for
        return e
    return None


def _tell(seed: int, error: Exception) -> None:
    text = f"seed {seed}: {type(error).__name__}: {error}\n"
    if not isinstance(error, AssertionError):
        text += "".join(traceback.format_exception(error)[-6:])
    sys.stdout.write(f"{text}    repeat it: python -m tests.simulation --seed {seed}\n")
    sys.stdout.flush()


class _collected_between:
    """No collection of garbage in the middle of a schedule: it takes a third of the time, and finds little there."""

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
    """One thread of a process runs at a time: to pass the turn to one on another processor costs more."""
    if hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {usable[number % len(usable)]})
