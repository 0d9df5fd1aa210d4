"""The demo as a backfill, next to a plain loop in one session, one job, and a ``spark-submit`` per day."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.support.cpu import Used
from benchmarks.support.cpu import figures as cpu_figures
from benchmarks.support.flights import User, bare_job, bare_loop, days, submitted, user_with_spark

DAYS = int(os.environ.get("BENCH_DAYS", "60"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))
SUBMITTED_EACH = 2
BATCH = 30
EACH, RANGE = "flights_each", "flights_daily"


def backfilled(user: User, pipeline: str, chosen: Sequence[str], id: str, batch_size: int) -> float:
    """Seconds from the request to the end of a backfill of these days."""
    user.run(
        "backfill", "create", pipeline, "--from", chosen[0], "--to", chosen[-1], "--id", id,
        "--batch-size", str(batch_size),
        "--reprocess", "completed", "--conf", json.dumps({"data": str(user.data)}), "--watch",
    )  # fmt: skip
    shown = user.json("backfill", "show", id)
    assert shown["by_state"] == {"succeeded": len(chosen)}, shown["by_state"]
    asked, ended = (datetime.fromisoformat(shown[name]) for name in ("requested_at", "ended_at"))
    return (ended - asked).total_seconds()


def run() -> Sequence[Figure]:
    """Alternate on the same Spark, after warm-up days for all."""
    with user_with_spark(flights=True) as user:
        parallel = user.settings().driver_slots
        chosen = days(DAYS)
        for pipeline in (EACH, RANGE):
            backfilled(user, pipeline, days(12), f"warm-{pipeline}", 3)
        single, batches, ranges, loop, job = [], [], [], [], []
        of_batches, of_loop = [], []
        for n in range(REPEATS):
            single.append(backfilled(user, EACH, chosen, f"single-{n}", 1) / DAYS)
            before = Used(user.home)
            batches.append(backfilled(user, EACH, chosen, f"batches-{n}", BATCH) / DAYS)
            of_batches.append(Used(user.home).since(before, DAYS))
            ranges.append(backfilled(user, RANGE, chosen, f"ranges-{n}", DAYS) / DAYS)
            before = Used(user.home)
            loop.append(bare_loop(user, chosen, parallel) / DAYS)
            of_loop.append(Used(user.home).since(before, DAYS))
            job.append(bare_job(user, chosen) / DAYS)
        submits = [submitted(user, days(parallel, n * parallel)) / parallel for n in range(SUBMITTED_EACH)]
    middle = sorted(batches)[REPEATS // 2]
    return [
        figure(f"a day of {DAYS}, in ranges", "s", ranges),
        figure(f"a day of {DAYS}, in batches of {BATCH}", "s", batches),
        figure(f"a day of {DAYS}, one by one", "s", single),
        figure(f"a day of {DAYS} in a plain loop, {parallel} at a time", "s", loop),
        figure(f"a day of {DAYS} in one job", "s", job),
        figure("in ranges, beside the one job", "x", ratios(ranges, job), at_most=1.3),
        figure("in ranges, faster than the plain loop", "x", ratios(loop, ranges), at_least=4),
        figure("in batches, beside the plain loop", "x", ratios(batches, loop), at_most=1.15),
        figure("one by one, beside the plain loop", "x", ratios(single, loop), at_most=1.6),
        *cpu_figures("a day in batches", of_batches),
        *cpu_figures("a day in the plain loop", of_loop),
        figure(f"a day by spark-submit, {parallel} at a time", "s", submits),
        figure("in batches, faster than a spark-submit a day", "x", [each / middle for each in submits], at_least=10),
    ]


BENCHMARK = Benchmark(
    "spark",
    f"{DAYS} days of the demo's pipeline (BENCH_DAYS sets how many, BENCH_REPEATS how often), from the request to"
    " the backfill's end",
    "the same transformation in a plain loop of one Spark session with as many at a time, and in one job over all days; a "
    "spark-submit for a day, as many at a time too, of which a few days are measured and stand for all",
    "in ranges at most 1.3 x the one job and 4 x faster than the loop; in batches at most 1.15 x the loop, one by one "
    "1.6 x; at least 10 x faster than a spark-submit a day",
    run,
)
