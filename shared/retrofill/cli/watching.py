"""Watch a backfill: its events say when to look, Postgres says how far it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from confluent_kafka import Consumer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from retrofill.cli.output import STATE_STYLES, console, counts, duration
from retrofill.client import read as reads
from retrofill.client.connect import reading_engine, snapshot
from retrofill.client.kafka import content, ends_of, homes_of, reading_topics
from retrofill.contract.topics import Topic
from retrofill.domain.backfill import MACHINE, BackfillState
from retrofill.domain.run import MACHINE as RUN_MACHINE
from retrofill.errors import UserError
from retrofill.settings import Settings
from retrofill.store.backfills import run_counts
from retrofill.store.clock import database_now

LOOKS_A_SECOND = 4
# Counting the runs of a large backfill takes the database some time: at most this share of one connection's.
LOAD = 0.2
RATE_SECONDS = 20.0
LINE_SECONDS = 5.0
# How long the database may be away before watching ends.
OUTAGE_SECONDS = 60.0


@dataclass(frozen=True)
class Progress:
    """How far a backfill was at ``at`` (the database's clock)."""

    id: str
    pipeline: str
    state: str
    runs: int
    by_state: dict[str, int]
    at: datetime

    @property
    def ended(self) -> int:
        """Runs that ended, however."""
        return sum(count for state, count in self.by_state.items() if state in RUN_MACHINE.terminal)

    @property
    def over(self) -> bool:
        """Whether the backfill ended."""
        return self.state in MACHINE.terminal


class Speed:
    """Runs a second over the last few seconds."""

    def __init__(self) -> None:
        self._readings: deque[tuple[datetime, int]] = deque()

    def add(self, check: Progress) -> None:
        """One more look."""
        self._readings.append((check.at, check.ended))
        while len(self._readings) > 2 and (check.at - self._readings[1][0]).total_seconds() > RATE_SECONDS:
            self._readings.popleft()

    def per_second(self) -> float | None:
        """The speed, once something ended."""
        if len(self._readings) < 2:
            return None
        (then, before), (now, after) = self._readings[0], self._readings[-1]
        seconds = (now - then).total_seconds()
        return (after - before) / seconds if after > before and seconds > 0 else None


def take_look(engine: Engine, id: str) -> Progress:
    """Read how far the backfill is. Raises ``UserError`` where there is none."""
    with snapshot(engine) as conn:
        row = reads.one_backfill(conn, id)
        if row is None:
            raise UserError(missing(reads.recorded_answer(conn, id), id))
        return Progress(id, row["pipeline"], row["state"], row["runs"], run_counts(conn, id), database_now(conn))


def missing(answer: dict[str, object] | None, id: str) -> str:
    """Why there is no such backfill: it was rejected, it ended and was purged, or nobody asked for it."""
    if answer is not None:
        rejected = answer.get("message")
        return f"backfill {id} was rejected: {rejected}" if rejected else f"backfill {id} ended long ago and was purged"
    return f"there is no backfill {id!r}: retrofill backfill list"


def watch(settings: Settings, id: str, *, quiet: bool = False) -> Progress:
    """Show progress until the backfill ended; returns the last look. ``quiet`` shows nothing."""
    with reading_topics(settings) as consumer, reading_engine(settings) as engine:
        # Listening begins before the first look, so that no change falls between the two.
        _listen(consumer, settings, id)
        with _screen(quiet) as show:
            check = None
            for check in checks(consumer, engine, id):
                show(check)
            assert check is not None  # the first look comes before anything is waited for
            return check


def _listen(consumer: Consumer, settings: Settings, id: str) -> None:
    places = []
    for topic in (Topic.BACKFILL_EVENTS, Topic.RUN_EVENTS):
        places += homes_of(settings, consumer, settings.topic_prefix + topic, id.encode())
    consumer.assign(ends_of(consumer, places))


def checks(consumer: Consumer, engine: Engine, id: str) -> Iterator[Progress]:
    """A look now, and one after each batch of events, until the backfill ended; never more often than bearable."""
    while True:
        began = time.monotonic()
        check = _read_through_outages(engine, id)
        yield check
        if check.over:
            return
        cost = time.monotonic() - began
        _wait_for_event(consumer, id.encode(), began + max(1 / LOOKS_A_SECOND, cost / LOAD))


def _read_through_outages(engine: Engine, id: str) -> Progress:
    until = time.monotonic() + OUTAGE_SECONDS
    while True:
        try:
            return take_look(engine, id)
        except OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def _wait_for_event(consumer: Consumer, key: bytes, not_before: float) -> None:
    """Return once an event of the backfill came, but not before that moment; what comes until then counts as one."""
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
    """Where looks are shown: a live display on a terminal, otherwise a line every few seconds."""
    out = console()
    if quiet:
        yield lambda _look: None
    elif out.is_terminal:
        with Live(console=out, auto_refresh=False) as live:
            yield _live_show(live)
    else:
        yield _line_show(out)


def _live_show(live: Live) -> Show:
    speed = Speed()

    def show(check: Progress) -> None:
        speed.add(check)
        live.update(render(check, speed.per_second()), refresh=True)

    return show


def _line_show(out: Console) -> Show:
    speed = Speed()
    last: tuple[str, float] | None = None

    def show(check: Progress) -> None:
        nonlocal last
        speed.add(check)
        now = time.monotonic()
        if last is None or last[0] != check.state or now - last[1] >= LINE_SECONDS:
            last = (check.state, now)
            out.print(line(check, speed.per_second()), markup=False, soft_wrap=True)

    return show


def line(check: Progress, per_second: float | None) -> str:
    """Everything in one line."""
    done = f"{check.ended:,}/{check.runs:,} runs ended ({counts(check.by_state)})"
    return f"{check.id} {check.state}: {done}{pace(check, per_second)}"


def pace(check: Progress, per_second: float | None) -> str:
    """Speed and remaining time, as far as they are known."""
    if per_second is None or check.over:
        return ""
    speed = f", {per_second:,.1f} runs/s"
    if check.state != BackfillState.RUNNING:
        return speed
    return f"{speed}, {duration((check.runs - check.ended) / per_second)} left"


def render(check: Progress, per_second: float | None) -> Group:
    """The live display: title, bar and counts."""
    title = Text.assemble(
        (check.pipeline, "bold"), " ", check.id, " ", (check.state, STATE_STYLES.get(check.state, ""))
    )
    bar = Table.grid(padding=(0, 1))
    done = f"{check.ended:,}/{check.runs:,} ({check.ended * 100 // check.runs} %){pace(check, per_second)}"
    bar.add_row(ProgressBar(total=check.runs, completed=check.ended, width=30), Text(done))
    parts = [
        (f"{count:,} {state}", STATE_STYLES.get(state, "")) for state, count in sorted(check.by_state.items()) if count
    ]
    by_state = Text("  ").join(Text(text, style) for text, style in parts)
    if check.state == BackfillState.PAUSED:
        return Group(title, bar, by_state, Text(f"go on with: retrofill backfill resume {check.id}", "dim"))
    return Group(title, bar, by_state)
