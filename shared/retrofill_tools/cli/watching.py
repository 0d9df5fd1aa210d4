"""Watch a backfill: its events trigger a check, and Postgres has the progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from confluent_kafka import Consumer, KafkaException
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import MACHINE, BackfillState
from retrofill_core.domain.estimate import Estimate
from retrofill_core.domain.run import MACHINE as RUN_MACHINE
from retrofill_core.settings import Settings
from retrofill_core.store.backfills import run_counts
from retrofill_core.store.clock import database_now
from retrofill_tools.cli.estimating import left
from retrofill_tools.cli.output import STATE_STYLES, console, counts
from retrofill_tools.client.backfills import expected_end, find_backfill
from retrofill_tools.client.connect import reading_engine, snapshot
from retrofill_tools.client.kafka import content, ends_of, homes_of, reading_topics

CHECKS_PER_SECOND = 4
# Counting the runs of a large backfill is slow: spend at most this share of the time on it.
LOAD = 0.2
RATE_SECONDS = 20.0
LINE_SECONDS = 5.0
# How long the database or Kafka may be unreachable before watching fails.
OUTAGE_SECONDS = 60.0
# What a backfill waits for that only a user can do.
GOES_ON_WITH = {
    BackfillState.PAUSED: "resume with: retrofill backfill resume {id}",
    BackfillState.IN_REVIEW: "in review: retrofill backfill diff {id}, then publish {id} or discard {id}",
}


@dataclass(frozen=True)
class Progress:
    """The progress of a backfill at ``at`` (the database's clock)."""

    id: str
    pipeline: str
    state: str
    runs: int
    by_state: Mapping[str, int]
    at: datetime
    estimate: Estimate | None = None

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.by_state.items() if state in RUN_MACHINE.terminal)

    @property
    def over(self) -> bool:
        return self.state in MACHINE.terminal


class Speed:
    """Runs a second over the last few seconds."""

    def __init__(self) -> None:
        self._readings: deque[tuple[datetime, int]] = deque()

    def add(self, progress: Progress) -> None:
        self._readings.append((progress.at, progress.ended))
        while len(self._readings) > 2 and (progress.at - self._readings[1][0]).total_seconds() > RATE_SECONDS:
            self._readings.popleft()

    def per_second(self) -> float | None:
        """Runs that ended per second, or ``None`` before the first one did."""
        if len(self._readings) < 2:
            return None
        (then, before), (now, after) = self._readings[0], self._readings[-1]
        seconds = (now - then).total_seconds()
        return (after - before) / seconds if after > before and seconds > 0 else None


_through_outages = retry(
    retry=retry_if_exception_type((KafkaException, OperationalError)),
    stop=stop_after_delay(OUTAGE_SECONDS),
    wait=wait_fixed(1),
    reraise=True,
)


@_through_outages
def read_progress(engine: Engine, id: str) -> Progress:
    """Read a backfill's progress. Raises ``NotThere`` if it does not exist."""
    with snapshot(engine) as conn:
        of = find_backfill(conn, id)
        by_state, now = run_counts(conn, id), database_now(conn)
        return Progress(id, of.pipeline, of.state, of.runs, by_state, now, expected_end(conn, of, by_state, now))


def watch(settings: Settings, id: str, *, quiet: bool = False) -> Progress:
    """Show progress until the backfill ends; returns the final progress.

    ``quiet`` shows nothing.
    """
    with reading_topics(settings) as consumer, reading_engine(settings) as engine:
        # Subscribe before the first read, so no change is missed between the two.
        _listen(consumer, settings, id)
        with _screen(quiet) as show:
            progress = None
            for progress in readings(consumer, engine, id):
                show(progress)
            assert progress is not None  # the first reading does not wait
            return progress


@_through_outages
def _listen(consumer: Consumer, settings: Settings, id: str) -> None:
    """A broker that has just started does not know the leaders of its partitions at first."""
    places = []
    for topic in (Topic.BACKFILL_EVENTS, Topic.RUN_EVENTS):
        places += homes_of(settings, consumer, settings.topic_prefix + topic, id.encode())
    consumer.assign(ends_of(consumer, places))


def readings(consumer: Consumer, engine: Engine, id: str) -> Iterator[Progress]:
    """Yield the progress now and after events, rate-limited, until the backfill ends."""
    while True:
        began = time.monotonic()
        progress = read_progress(engine, id)
        yield progress
        if progress.over:
            return
        cost = time.monotonic() - began
        _wait_for_event(consumer, id.encode(), began + max(1 / CHECKS_PER_SECOND, cost / LOAD))


def _wait_for_event(consumer: Consumer, key: bytes, not_before: float) -> None:
    """Wait for an event of the backfill, at least until ``not_before``."""
    seen = False
    while True:
        left = not_before - time.monotonic()
        if seen and left <= 0:
            return
        message = content(consumer.poll(max(left, 0.0) if seen else 1.0))
        seen = seen or (message is not None and message.key() == key)


Show = Callable[[Progress], None]


@contextmanager
def _screen(quiet: bool) -> Iterator[Show]:
    """Where progress is shown: a live display on a terminal, otherwise a line every few seconds."""
    out = console()
    if quiet:
        yield lambda _progress: None
    elif out.is_terminal:
        with Live(console=out, auto_refresh=False) as live:
            yield _live_show(live)
    else:
        yield _line_show(out)


def _live_show(live: Live) -> Show:
    speed = Speed()

    def show(progress: Progress) -> None:
        speed.add(progress)
        live.update(render(progress, speed.per_second()), refresh=True)

    return show


def _line_show(out: Console) -> Show:
    speed = Speed()
    last: tuple[str, float] | None = None

    def show(progress: Progress) -> None:
        nonlocal last
        speed.add(progress)
        now = time.monotonic()
        if last is None or last[0] != progress.state or now - last[1] >= LINE_SECONDS:
            last = (progress.state, now)
            out.print(line(progress, speed.per_second()), markup=False, soft_wrap=True)

    return show


def line(progress: Progress, per_second: float | None) -> str:
    """The progress in one line."""
    done = f"{progress.ended:,}/{progress.runs:,} runs ended ({counts(progress.by_state)})"
    ends = f", {left(progress.estimate)}" if progress.estimate else ""
    next_step = f"; {command}" if (command := goes_on_with(progress)) else ""
    return f"{progress.id} {progress.state}: {done}{pace(progress, per_second)}{ends}{next_step}"


def goes_on_with(progress: Progress) -> str | None:
    """What a user has to do before it continues, if it waits for that."""
    command = GOES_ON_WITH.get(BackfillState(progress.state))
    return None if command is None else command.format(id=progress.id)


def pace(progress: Progress, per_second: float | None) -> str:
    """The speed, if known."""
    return "" if per_second is None or progress.over else f", {per_second:,.1f} runs/s"


def render(progress: Progress, per_second: float | None) -> Group:
    """The live display: title, progress bar and counts."""
    title = Text.assemble(
        (progress.pipeline, "bold"), " ", progress.id, " ", (progress.state, STATE_STYLES.get(progress.state, ""))
    )
    bar = Table.grid(padding=(0, 1))
    done = (
        f"{progress.ended:,}/{progress.runs:,} ({progress.ended * 100 // progress.runs} %){pace(progress, per_second)}"
    )
    bar.add_row(ProgressBar(total=progress.runs, completed=progress.ended, width=30), Text(done))
    parts = [
        (f"{count:,} {state}", STATE_STYLES.get(state, ""))
        for state, count in sorted(progress.by_state.items())
        if count
    ]
    by_state = Text("  ").join(Text(text, style) for text, style in parts)
    if progress.estimate is not None:
        return Group(title, bar, by_state, Text(left(progress.estimate), "dim"))
    if (command := goes_on_with(progress)) is not None:
        return Group(title, bar, by_state, Text(command, "dim"))
    return Group(title, bar, by_state)
