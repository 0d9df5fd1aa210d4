"""The demo as a backfill, next to a plain loop in one session, one job, and a ``spark-submit`` per day."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime

import psutil

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.support.cpu import Used
from benchmarks.support.cpu import figures as cpu_figures
from benchmarks.support.flights import User, bare_job, bare_loop, days, scratch_of, submitted, user_with_spark
from benchmarks.support.requests import LOGS_REQUESTS, requests_of

DAYS = int(os.environ.get("BENCH_DAYS", "60"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))
SUBMITTED_EACH = 2
BATCH = 30
EACH, RANGE = "flights_each", "flights_daily"
IN_BATCHES, ONE_BY_ONE = 1.3, 1.6
ON_SPARK = "CPU of Spark and drivers beside the plain loop's"


def backfilled(user: User, pipeline: str, chosen: Sequence[str], id: str, batch_size: int) -> float:
    """Seconds from the request to the end of a backfill of these days."""
    user.run(
        "backfill", "create", pipeline, "--from", chosen[0], "--to", chosen[-1], "--id", id,
        "--batch-size", str(batch_size),
        "--reprocess", "completed", "--conf", json.dumps({"data": str(scratch_of(user, pipeline))}), "--watch",
    )  # fmt: skip
    shown = user.json("backfill", "show", id)
    assert shown["by_state"] == {"succeeded": len(chosen)}, shown["by_state"]
    asked, ended = (datetime.fromisoformat(shown[name]) for name in ("requested_at", "ended_at"))
    return (ended - asked).total_seconds()


class Way:
    """A way to process days: what a day took each time, in seconds and in milliseconds of CPU by part."""

    def __init__(self, process: Callable[[str], float]) -> None:
        """``process`` takes an id of its own and returns seconds."""
        self._process = process
        self.seconds: list[float] = []
        self.cpu: list[dict[str, float]] = []

    def warm_up(self, id: str) -> None:
        """Process the days without counting."""
        self._process(id)

    def repeat(self, user: User, id: str) -> None:
        """Process the days once more. This process drives what Retrofill does not."""
        own = [psutil.Process()]
        before = Used(user.home, drivers=own)
        self.seconds.append(self._process(id) / DAYS)
        self.cpu.append(Used(user.home, drivers=own).since(before, DAYS))

    def on_spark(self) -> list[float]:
        """CPU of Spark and of what drives it."""
        return [each["Spark"] + each["drivers"] for each in self.cpu]


def in_turn(names: Sequence[str], n: int) -> Sequence[str]:
    """The names, beginning with another one each time; every second time backwards."""
    first = n % len(names)
    turned = [*names[first:], *names[:first]]
    return turned[::-1] if n % 2 else turned


def run() -> Sequence[Figure]:
    """Alternate on the same Spark, after all ways ran once."""
    with user_with_spark(flights=True) as user:
        parallel = user.settings().driver_slots
        chosen = days(DAYS)
        single = Way(lambda id: backfilled(user, EACH, chosen, id, 1))
        batches = Way(lambda id: backfilled(user, EACH, chosen, id, BATCH))
        ranges = Way(lambda id: backfilled(user, RANGE, chosen, id, DAYS))
        loop = Way(lambda _: bare_loop(user, chosen, parallel))
        sessions = Way(lambda _: bare_loop(user, chosen, parallel, shared=False))
        job = Way(lambda _: bare_job(user, chosen))
        ways = {"single": single, "batches": batches, "ranges": ranges, "loop": loop, "sessions": sessions, "job": job}
        for name, way in ways.items():
            way.warm_up(f"warm-{name}")
        for n in range(REPEATS):
            # The server's JVM gets faster all the time: whoever is always last would look best.
            for name in in_turn(list(ways), n):
                ways[name].repeat(user, f"{name}-{n}")
        submits = [submitted(user, days(parallel, n * parallel)) / parallel for n in range(SUBMITTED_EACH)]
    middle = sorted(batches.seconds)[REPEATS // 2]
    return [
        figure(f"a day of {DAYS}, in ranges", "s", ranges.seconds),
        figure(f"a day of {DAYS}, in batches of {BATCH}", "s", batches.seconds),
        figure(f"a day of {DAYS}, one by one", "s", single.seconds),
        figure(f"a day of {DAYS} in a plain loop, {parallel} at a time", "s", loop.seconds),
        figure(f"a day of {DAYS} in a plain loop with a session for each day", "s", sessions.seconds),
        figure(f"a day of {DAYS} in one job", "s", job.seconds),
        figure("in ranges, beside the one job", "x", ratios(ranges.seconds, job.seconds), at_most=1.3),
        figure("in ranges, faster than the plain loop", "x", ratios(loop.seconds, ranges.seconds), at_least=4),
        figure("in batches, beside the plain loop", "x", ratios(batches.seconds, loop.seconds), at_most=IN_BATCHES),
        figure("one by one, beside the plain loop", "x", ratios(single.seconds, loop.seconds), at_most=ONE_BY_ONE),
        figure(
            "one by one, beside the loop with a session for each day", "x", ratios(single.seconds, sessions.seconds)
        ),
        figure(
            "the loop with a session for each day, beside the plain loop", "x", ratios(sessions.seconds, loop.seconds)
        ),
        figure(f"{ON_SPARK}, in batches", "x", ratios(batches.on_spark(), loop.on_spark()), at_most=IN_BATCHES),
        figure(f"{ON_SPARK}, one by one", "x", ratios(single.on_spark(), loop.on_spark()), at_most=ONE_BY_ONE),
        *cpu_figures("a day in batches", batches.cpu),
        *cpu_figures("a day one by one", single.cpu),
        *cpu_figures("a day in the plain loop", loop.cpu),
        figure(f"a day by spark-submit, {parallel} at a time", "s", submits),
        figure("in batches, faster than a spark-submit a day", "x", [each / middle for each in submits], at_least=10),
        *requests(),
    ]


def requests() -> list[Figure]:
    """Requests to Spark for a day. They cannot be counted while time is measured: the server logs each one."""
    with user_with_spark(flights=True, more=LOGS_REQUESTS) as user:
        counted = {
            f"in batches of {BATCH}": requests_of(user, lambda: backfilled(user, EACH, days(DAYS), "batches", BATCH)),
            "one by one": requests_of(user, lambda: backfilled(user, EACH, days(DAYS), "single", 1)),
            "in the plain loop": requests_of(user, lambda: bare_loop(user, days(DAYS), user.settings().driver_slots)),
        }
    return [
        figure(f"{kind} requests of a day, {way}", "", [count / DAYS])
        for way, found in counted.items()
        for kind, count in found.items()
    ]


BENCHMARK = Benchmark(
    "spark",
    f"{DAYS} days of the demo's pipeline (BENCH_DAYS sets how many, BENCH_REPEATS how often), from the request to"
    " the backfill's end",
    "the same transformation in a plain loop of one Spark session with as many at a time, and in one job over all days; a "
    "spark-submit for a day, as many at a time too, of which a few days are measured and stand for all",
    "in ranges at most 1.3 x the one job and 4 x faster than the loop; in batches at most 1.3 x the loop, one by one "
    "1.6 x, in time and in CPU of Spark and drivers; at least 10 x faster than a spark-submit a day",
    run,
)
