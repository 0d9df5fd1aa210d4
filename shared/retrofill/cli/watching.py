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

from retrofill.bus.topics import Topic
from retrofill.cli import reads
from retrofill.cli.connect import reading_engine, snapshot
from retrofill.cli.errors import UserError
from retrofill.cli.kafka import content, ends_of, homes_of, reading_topics
from retrofill.cli.output import STATE_STYLES, console, counts, duration
from retrofill.domain.backfill import MACHINE, BackfillState
from retrofill.domain.run import MACHINE as RUN_MACHINE
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
class Look:
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
        self._looks: deque[tuple[datetime, int]] = deque()

    def add(self, look: Look) -> None:
        """One more look."""
        self._looks.append((look.at, look.ended))
        while len(self._looks) > 2 and (look.at - self._looks[1][0]).total_seconds() > RATE_SECONDS:
            self._looks.popleft()

    def per_second(self) -> float | None:
        """The speed, once something ended."""
        if len(self._looks) < 2:
            return None
        (then, before), (now, after) = self._looks[0], self._looks[-1]
        seconds = (now - then).total_seconds()
        return (after - before) / seconds if after > before and seconds > 0 else None


def take_look(engine: Engine, id: str) -> Look:
    """Read how far the backfill is. Raises ``UserError`` where there is none."""
    with snapshot(engine) as conn:
        row = reads.one_backfill(conn, id)
        if row is None:
            raise UserError(missing(reads.recorded_answer(conn, id), id))
        return Look(id, row["pipeline"], row["state"], row["runs"], run_counts(conn, id), database_now(conn))


def missing(answer: dict[str, object] | None, id: str) -> str:
    """Why there is no such backfill: it was rejected, it ended and was purged, or nobody asked for it."""
    if answer is not None:
        rejected = answer.get("message")
        return f"backfill {id} was rejected: {rejected}" if rejected else f"backfill {id} ended long ago and was purged"
    return f"there is no backfill {id!r}: retrofill backfill list"


def watch(settings: Settings, id: str, *, quiet: bool = False) -> Look:
    """Show progress until the backfill ended; returns the last look. ``quiet`` shows nothing."""
    with reading_topics(settings) as consumer, reading_engine(settings) as engine:
        # Listening begins before the first look, so that no change falls between the two.
        _listen(consumer, settings, id)
        with _screen(quiet) as show:
            look = None
            for look in looks(consumer, engine, id):
                show(look)
            assert look is not None  # the first look comes before anything is waited for
            return look


def _listen(consumer: Consumer, settings: Settings, id: str) -> None:
    places = []
    for topic in (Topic.BACKFILL_EVENTS, Topic.RUN_EVENTS):
        places += homes_of(settings, consumer, settings.topic_prefix + topic, id.encode())
    consumer.assign(ends_of(consumer, places))


def looks(consumer: Consumer, engine: Engine, id: str) -> Iterator[Look]:
    """A look now, and one after each batch of events, until the backfill ended; never more often than bearable."""
    while True:
        began = time.monotonic()
        look = _look_through_outages(engine, id)
        yield look
        if look.over:
            return
        cost = time.monotonic() - began
        _wait_for_event(consumer, id.encode(), began + max(1 / LOOKS_A_SECOND, cost / LOAD))


def _look_through_outages(engine: Engine, id: str) -> Look:
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


Show = Callable[[Look], None]


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

    def show(look: Look) -> None:
        speed.add(look)
        live.update(render(look, speed.per_second()), refresh=True)

    return show


def _line_show(out: Console) -> Show:
    speed = Speed()
    last: tuple[str, float] | None = None

    def show(look: Look) -> None:
        nonlocal last
        speed.add(look)
        now = time.monotonic()
        if last is None or last[0] != look.state or now - last[1] >= LINE_SECONDS:
            last = (look.state, now)
            out.print(line(look, speed.per_second()), markup=False, soft_wrap=True)

    return show


def line(look: Look, per_second: float | None) -> str:
    """Everything in one line."""
    done = f"{look.ended:,}/{look.runs:,} runs ended ({counts(look.by_state)})"
    return f"{look.id} {look.state}: {done}{pace(look, per_second)}"


def pace(look: Look, per_second: float | None) -> str:
    """Speed and remaining time, as far as they are known."""
    if per_second is None or look.over:
        return ""
    speed = f", {per_second:,.1f} runs/s"
    if look.state != BackfillState.RUNNING:
        return speed
    return f"{speed}, {duration((look.runs - look.ended) / per_second)} left"


def render(look: Look, per_second: float | None) -> Group:
    """The live display: title, bar and counts."""
    title = Text.assemble((look.pipeline, "bold"), " ", look.id, " ", (look.state, STATE_STYLES.get(look.state, "")))
    bar = Table.grid(padding=(0, 1))
    done = f"{look.ended:,}/{look.runs:,} ({look.ended * 100 // look.runs} %){pace(look, per_second)}"
    bar.add_row(ProgressBar(total=look.runs, completed=look.ended, width=30), Text(done))
    parts = [
        (f"{count:,} {state}", STATE_STYLES.get(state, "")) for state, count in sorted(look.by_state.items()) if count
    ]
    by_state = Text("  ").join(Text(text, style) for text, style in parts)
    if look.state == BackfillState.PAUSED:
        return Group(title, bar, by_state, Text(f"go on with: retrofill backfill resume {look.id}", "dim"))
    return Group(title, bar, by_state)
