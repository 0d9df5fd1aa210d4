"""The console's cost with two hundred viewers, and how soon they see something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import psutil
from tests.console.browser import chromium, files_page, measured
from tests.support.console import Web, start_console
from tests.support.definitions import daily
from tests.support.installation import Installation, until

from benchmarks.core import Benchmark, Figure, figure
from benchmarks.support.servers import installed, servers
from benchmarks.support.viewers import MARK, Viewer, get, watching
from retrofill_core.contract.backfills import BackfillPauseRequested
from retrofill_core.contract.topics import Topic

VIEWERS, EVENTS, REPEATS = 200, 20, 5
INTERVALS, RUNS = 10_000, 1_000
SLOTS = "8"
APART_SECONDS = 0.3
# 60 a second, and what a clock of whole frames may add.
FRAMES, FRAME_MS = 120, 17.0


def run() -> Sequence[Figure]:
    """Measure the pages first, then the viewers, at rest and while runs end."""
    with servers() as on, installed(on) as made:
        made.start("backfill-planner")
        made.apply(daily("hours", schedule="@hourly"))
        made.apply(daily("days"))
        big = made.request("hours", "2020-01-01T00:00:00Z", "2021-02-20T15:00:00Z")
        planned = made.outcome(big).body["runs"]
        assert planned == INTERVALS, planned
        # It is only looked at: the others' runs start.
        made.publish(Topic.BACKFILL_REQUESTS, big, BackfillPauseRequested())
        made.wait_state(big, "paused")
        first, web = zip(*(_first_page(made) for _ in range(REPEATS)), strict=True)
        return [
            figure(
                "first page of a new console: file, list of backfills and who is logged in", "ms", first, at_most=300
            ),
            figure(f"grid of {INTERVALS:,} intervals", "ms", _grids(web[-1], big), at_most=500),
            *_drawn(),
            *asyncio.run(_viewers(made, web[-1])),
        ]


def _first_page(made: Installation) -> tuple[float, Web]:
    """Milliseconds of all requests of the first page, of a console that has just started."""
    web = start_console(made)
    began = time.monotonic()
    for path in ("/", "/api/v1/me", "/api/v1/backfills"):
        assert web.client.get(path).status_code == 200
    return 1000 * (time.monotonic() - began), web


def _drawn() -> list[Figure]:
    """What a browser needs for a grid, in memory: from its data to pixels, and between two frames."""
    with chromium() as browser:
        page = files_page(browser)
        found = []
        for count, mount in ((10 * RUNS, 500), (100 * RUNS, 2000)):
            mounts = [measured(page, "mount", count) for _ in range(REPEATS)]
            found += [
                figure(f"{count:,} intervals drawn by a browser", "ms", mounts, at_most=mount),
                figure(f"{count:,}: a frame while it pans", "ms", [measured(page, "pan", FRAMES)], at_most=FRAME_MS),
                figure(f"{count:,}: a frame while it fills", "ms", [measured(page, "fill", FRAMES)], at_most=FRAME_MS),
            ]
        return found


def _grids(web: Web, id: str) -> list[float]:
    return [_milliseconds(web, f"/api/v1/backfills/{id}/grid?n={n}") for n in range(REPEATS)]


def _milliseconds(web: Web, path: str) -> float:
    began = time.monotonic()
    assert len(web.client.get(path).json()["starts"]) == INTERVALS
    return 1000 * (time.monotonic() - began)


async def _viewers(made: Installation, web: Web) -> list[Figure]:
    process = psutil.Process(web.replica.process.pid)
    before = process.memory_full_info().pss
    async with watching(web.url, VIEWERS) as viewers:
        at_rest = await _delays(made, viewers)
        more = process.memory_full_info().pss - before
        cpu, while_running, answers = await _under_load(made, web, process, viewers)
        sent = sum(each.bytes for each in viewers) / 1e6
    return [
        figure(f"an event until the last of {VIEWERS} viewers has it", "ms", at_rest, at_most=300),
        figure(f"the same while {RUNS:,} runs end", "ms", while_running, at_most=300),
        figure("memory of the console", "MB", [before / 1e6]),
        figure(f"memory of {VIEWERS} viewers more", "MB", [more / 1e6], at_most=50),
        figure(f"CPU of the console while {RUNS:,} runs end and {VIEWERS} watch", "%", [cpu]),
        figure(f"list of backfills for {VIEWERS} viewers at once", "ms", answers, at_most=1000),
        figure("sent to viewers", "MB", [sent]),
    ]


async def _delays(made: Installation, viewers: list[Viewer], prefix: str = "rest") -> list[float]:
    """Milliseconds from publishing an event until each viewer has it, the slowest viewer of each event."""
    found = []
    for n in range(EVENTS):
        mark = f"{prefix}-{n}"
        began = time.monotonic()
        body = f'{{"type": "Marked", "{MARK}": "{mark}"}}'.encode()
        await asyncio.to_thread(made.publish, Topic.PIPELINE_EVENTS, mark, body)
        while not all(mark in each.told for each in viewers):
            await asyncio.sleep(0.002)
        found.append(1000 * (max(each.told[mark] for each in viewers) - began))
        await asyncio.sleep(APART_SECONDS)
    return found


async def _under_load(
    made: Installation, web: Web, process: psutil.Process, viewers: list[Viewer]
) -> tuple[float, list[float], list[float]]:
    """Percent of a core while a backfill is run and all watch, delays meanwhile, and lists for all at once."""
    await asyncio.to_thread(partial(made.start, "instant-starter", RETROFILL_DRIVER_SLOTS=SLOTS))
    began, used = time.monotonic(), _cpu(process)
    id = made.request("days", "2000-01-01", "2002-09-26")
    delays = await _delays(made, viewers, "load")
    lists = [await _lists(web) for _ in range(REPEATS)]
    await asyncio.to_thread(
        until, lambda: made.runs_by_state(id).get("succeeded", 0) == RUNS, "all runs ended", seconds=600
    )
    return 100 * (_cpu(process) - used) / (time.monotonic() - began), delays, lists


async def _lists(web: Web) -> float:
    """Milliseconds until as many as there are viewers have the list of backfills."""
    began = time.monotonic()
    answers = await asyncio.gather(*(get(web.url, "/api/v1/backfills") for _ in range(VIEWERS)))
    assert all(each.startswith(b"HTTP/1.1 200 ") for each in answers)
    return 1000 * (time.monotonic() - began)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


BENCHMARK = Benchmark(
    name="console",
    what=f"{VIEWERS} viewers of one console, its first page and a grid of {INTERVALS:,} intervals",
    against="what people notice",
    aim="a page at once, an event within 300 ms for every viewer, and hardly any memory for each",
    run=run,
)
