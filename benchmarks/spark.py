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
BATCH = 30
SUBMITTED_EACH = 2


def backfilled(user: User, chosen: Sequence[str], id: str, batch_size: int) -> float:
    """Seconds from the request to the end of a backfill of these days."""
    user.run(
        "backfill", "create", "flights_daily", "--from", chosen[0], "--to", chosen[-1], "--id", id,
        "--batch-size", str(batch_size),
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
        backfilled(user, days(12), "warm", BATCH)
        single, batches, loop = [], [], []
        for repeat in range(REPEATS):
            single.append(backfilled(user, chosen, f"single-{repeat}", 1) / DAYS)
            batches.append(backfilled(user, chosen, f"batches-{repeat}", BATCH) / DAYS)
            loop.append(bare_loop(user, chosen, parallel) / DAYS)
        submits = [submitted(user, days(parallel, n * parallel)) / parallel for n in range(SUBMITTED_EACH)]
    middle = sorted(batches)[REPEATS // 2]
    return [
        figure(f"a day of {DAYS}, in batches of {BATCH}", "s", batches),
        figure(f"a day of {DAYS}, one by one", "s", single),
        figure(f"a day of {DAYS} in a plain loop, {parallel} at a time", "s", loop),
        figure("in batches, beside the plain loop", "x", ratios(batches, loop), at_most=1.15),
        figure("one by one, beside the plain loop", "x", ratios(single, loop), at_most=1.6),
        figure(f"a day by spark-submit, {parallel} at a time", "s", submits),
        figure("faster than a spark-submit a day", "x", [each / middle for each in submits], at_least=10),
    ]


BENCHMARK = Benchmark(
    "spark",
    f"{DAYS} days of the demo's pipeline (BENCH_DAYS sets how many), from the request to the backfill's end",
    "the same transformation in a plain loop of one Spark session with as many at a time; a spark-submit for a day, as "
    "many at a time too, of which a few days are measured and stand for all",
    "at most 1.15 x the loop in batches, 1.6 x one by one; at least 10 x faster than a spark-submit a day",
    run,
)
