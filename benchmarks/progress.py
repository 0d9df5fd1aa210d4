"""The planner's cost of announcing the progress of a thousand active backfills.

Each of them has changed since the last time, which is the worst case: 50 of one shard share a
transaction, and each is announced once in five seconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from sqlalchemy import Engine
from tests.support.history import waiting
from tests.support.installation import Installation
from tests.support.statements import recorded

from backfill_planner.progress import EVERY_SECONDS, MOST, announce
from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import installed, servers
from retrofill_core.bus.transaction import shard_transaction
from retrofill_core.contract.topics import PLANNER
from retrofill_core.store.engine import make_engine

BACKFILLS, RUNS, TIMES = 1000, 100, 5


def run() -> Sequence[Figure]:
    """Announce them all, several times."""
    with servers() as made, installed(made) as installation:
        ids = waiting(installation, BACKFILLS, RUNS)
        engine = make_engine(installation.settings.dsn_of(PLANNER.name), "benchmark")
        try:
            seconds = [_announced(installation, engine, ids) for _ in range(TIMES)]
            one, many = (_sent(installation, engine, ids[:number]) for number in (1, MOST))
        finally:
            engine.dispose()
    share = [each / EVERY_SECONDS * 100 for each in seconds]
    return [
        figure("progress of 1,000 backfills with 100 runs each", "s", seconds),
        figure("share of one connection's time", "%", share, at_most=20),
        figure("statements for 50 more than for one", "", [many - one], at_most=0),
        figure("median of a transaction of 50", "ms", [median(seconds) / BACKFILLS * MOST * 1000]),
    ]


def _announced(installation: Installation, engine: Engine, ids: list[str]) -> float:
    """Seconds to announce all, after something of each changed."""
    _change(installation)
    began = time.monotonic()
    for first in range(0, len(ids), MOST):
        _announce(engine, ids[first : first + MOST])
    return time.monotonic() - began


def _sent(installation: Installation, engine: Engine, ids: list[str]) -> int:
    """How many statements announce these."""
    _change(installation)
    with recorded(engine) as found:
        _announce(engine, ids)
    return len(found.shapes())


def _change(installation: Installation) -> None:
    installation.query("UPDATE backfill_progress SET runs = '{}' RETURNING backfill_id")


def _announce(engine: Engine, ids: list[str]) -> None:
    with shard_transaction(engine, PLANNER, 0, 0, 900_000) as tx:
        announce(tx, ids)


BENCHMARK = Benchmark(
    name="progress",
    what="announcing the progress of 1,000 active backfills that all changed since the last time",
    against="the time between two announcements, 5 s",
    aim="at most a fifth of one connection's time, and no statement more for 50 than for one",
    run=run,
)
