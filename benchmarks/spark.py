"""The demo as a backfill, next to a plain loop in one session and one ``spark-submit`` per day."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.support.flights import User, bare_loop, days, submitted, user_with_spark

DAYS = int(os.environ.get("BENCH_DAYS", "60"))
REPEATS = 3
SUBMITTED_EACH = 2


def backfilled(user: User, chosen: Sequence[str], id: str) -> float:
    """Seconds from the request to the end of a backfill of these days."""
    user.run(
        "backfill", "create", "flights_daily", "--from", chosen[0], "--to", chosen[-1], "--id", id,
        "--reprocess", "completed", "--conf", json.dumps({"data": str(user.data)}), "--watch",
    )  # fmt: skip
    shown = user.json("backfill", "show", id)
    assert shown["by_state"] == {"succeeded": len(chosen)}, shown["by_state"]
    asked, ended = (datetime.fromisoformat(shown[name]) for name in ("requested_at", "ended_at"))
    return (ended - asked).total_seconds()


def run() -> Sequence[Figure]:
    """Alternate on the same Spark, after warm-up days for both."""
    with user_with_spark(flights=True) as user:
        parallel = user.settings().driver_slots
        chosen = days(DAYS)
        backfilled(user, days(12), "warm")
        ours, loop = [], []
        for repeat in range(REPEATS):
            ours.append(backfilled(user, chosen, f"bench-{repeat}") / DAYS)
            loop.append(bare_loop(user, chosen, parallel) / DAYS)
        submits = [submitted(user, days(parallel, n * parallel)) / parallel for n in range(SUBMITTED_EACH)]
    middle = sorted(ours)[REPEATS // 2]
    return [
        figure(f"a day of {DAYS}", "s", ours),
        figure(f"a day of {DAYS} in a plain loop, {parallel} at a time", "s", loop),
        figure("beside the plain loop", "x", ratios(ours, loop), at_most=1.15),
        figure(f"a day by spark-submit, {parallel} at a time", "s", submits),
        figure("faster than a spark-submit a day", "x", [each / middle for each in submits], at_least=10),
    ]


BENCHMARK = Benchmark(
    "spark",
    f"{DAYS} days of the demo's pipeline (BENCH_DAYS sets how many), from the request to the backfill's end",
    "the same transformation in a plain loop of one Spark session with as many at a time; a spark-submit for a day, as "
    "many at a time too, of which a few days are measured and stand for all",
    "at most 1.15 x the loop; at least 10 x faster than a spark-submit a day",
    run,
)
