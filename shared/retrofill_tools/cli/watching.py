"""``retrofill watch`` shows everything that is active; ``backfill watch`` one backfill, whose events trigger a look at Postgres."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from confluent_kafka import Consumer, KafkaException
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from retrofill.wording import plural
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.backfill import MACHINE, BackfillState
from retrofill_core.domain.estimate import Estimate
from retrofill_core.domain.run import MACHINE as RUN_MACHINE
from retrofill_core.settings import Settings
from retrofill_core.store.backfills import run_counts
from retrofill_core.store.sql import database_now
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import (
    STATE_STYLES,
    cell,
    console,
    counts,
    duration,
    instant,
    moment,
    print_json,
    time_left,
)
from retrofill_tools.client.attempts import LiveAttempt, live_attempts
from retrofill_tools.client.backfills import ActiveBackfill, active_backfills, count_active, expected_end, find_backfill
from retrofill_tools.client.connect import load_settings, reading_engine, snapshot
from retrofill_tools.client.hosts import Host, find_hosts
from retrofill_tools.client.kafka import content, listen, reading_topics

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
_through_outages = retry(
    retry=retry_if_exception_type((KafkaException, OperationalError)),
    stop=stop_after_delay(OUTAGE_SECONDS),
    wait=wait_fixed(1),
    reraise=True,
)
# More do not fit on any screen.
MOST = 100
# Lines that are no rows: headings, and the counts of hosts.
FRAME = 9


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

    @property
    def settled(self) -> bool:
        """Whether nothing happens any more before somebody has reviewed it."""
        return self.over or self.state == BackfillState.IN_REVIEW


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


@_through_outages
def read_progress(engine: Engine, id: str) -> Progress:
    """Read a backfill's progress. Raises ``NotThere`` if it does not exist."""
    with snapshot(engine) as conn:
        of = find_backfill(conn, id)
        by_state, now = run_counts(conn, id), database_now(conn)
        return Progress(id, of.pipeline, of.state, of.runs, by_state, now, expected_end(conn, of, by_state, now))


def watch(settings: Settings, id: str, *, quiet: bool = False) -> Progress:
    """Show progress until the backfill ends or is in review; returns the final progress.

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
    listen(settings, consumer, id.encode(), (Topic.BACKFILL_EVENTS, Topic.RUN_EVENTS))


def readings(consumer: Consumer, engine: Engine, id: str) -> Iterator[Progress]:
    """Yield the progress now and after events, rate-limited, until the backfill ends or is in review."""
    while True:
        began = time.monotonic()
        progress = read_progress(engine, id)
        yield progress
        if progress.settled:
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
    done = f"{progress.ended:,}/{plural(progress.runs, 'run')} ended ({counts(progress.by_state)})"
    ends = f", {time_left(progress.estimate)}" if progress.estimate else ""
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
        return Group(title, bar, by_state, Text(time_left(progress.estimate), "dim"))
    if (command := goes_on_with(progress)) is not None:
        return Group(title, bar, by_state, Text(command, "dim"))
    return Group(title, bar, by_state)


@dataclass(frozen=True)
class Overview:
    """What is active, and how many there are of backfills and attempts."""

    at: datetime
    active_backfills: int
    live_attempts: int
    backfills: Sequence[ActiveBackfill]
    attempts: Sequence[LiveAttempt]
    hosts: Sequence[Host]


def watch_all(as_json: AsJson = False) -> None:
    """Show active backfills, live attempts and hosts, live on a terminal; Ctrl-C ends it."""
    out = console()
    with reading_engine(load_settings()) as engine:
        if as_json or not out.is_terminal:
            found = read_all(engine)
            return print_json(found) if as_json else out.print(render_all(found, {}, out))
        try:
            _live_screen(engine, out)
        except KeyboardInterrupt:
            return None


def read_all(engine: Engine) -> Overview:
    with snapshot(engine) as conn:
        active, live = count_active(conn)
        return Overview(
            database_now(conn),
            active,
            live,
            active_backfills(conn, MOST),
            live_attempts(conn, MOST),
            find_hosts(conn),
        )


def _live_screen(engine: Engine, out: Console) -> None:
    speeds: dict[str, Speed] = {}
    answered = time.monotonic()
    with Live(console=out, auto_refresh=False, screen=True) as live:
        while True:
            began = time.monotonic()
            try:
                found = read_all(engine)
            except OperationalError:
                if began > answered + OUTAGE_SECONDS:
                    raise
                time.sleep(1)
                continue
            answered = time.monotonic()
            for progress in _progress_of(found):
                speeds.setdefault(progress.id, Speed()).add(progress)
            live.update(render_all(found, speeds, out), refresh=True)
            time.sleep(max(1 / CHECKS_PER_SECOND, (time.monotonic() - began) / LOAD))


def _progress_of(found: Overview) -> list[Progress]:
    return [Progress(row.id, row.pipeline, row.state, row.runs, row.by_state, found.at) for row in found.backfills]


def render_all(found: Overview, speeds: Mapping[str, Speed], out: Console) -> RenderableType:
    """The screen. What does not fit is counted."""
    room = max(2, out.height - FRAME - len(found.hosts)) if out.is_terminal else 2 * MOST
    progress, attempts = _progress_of(found), found.attempts
    active, live = found.active_backfills, found.live_attempts
    for_attempts = min(len(attempts), max(room // 2, room - len(progress)))
    return Group(
        _title(found.at, active, live),
        _backfills(progress, speeds, max(1, room - for_attempts), active),
        Text(""),
        _attempts(attempts, max(1, for_attempts), live),
        Text(""),
        _hosts(found.hosts),
    )


def _title(at: datetime, active: int, live: int) -> Text:
    counted = f"{plural(active, 'active backfill')}, {plural(live, 'live attempt')}"
    return Text.assemble(("retrofill", "bold"), f"  {counted}  ", (f"{instant(at)} UTC", "dim"), "\n")


def _table(*columns: str, shrink: Sequence[str]) -> Table:
    """``shrink``: the columns that are cut if the screen is too narrow."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column not in shrink)
    return table


def _short(text: str) -> Text:
    """A cell of a column that may be cut."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _counted(table: Table, hidden: int, what: str) -> RenderableType:
    return Group(table, Text(f"… and {hidden:,} more {what}", "dim")) if hidden > 0 else table


def _backfills(progress: Sequence[Progress], speeds: Mapping[str, Speed], most: int, active: int) -> RenderableType:
    if not progress:
        return Text("no active backfills", "dim")
    table = _table("backfill", "pipeline", "state", "", "runs", "failed", shrink=("backfill", "pipeline"))
    for each in progress[:most]:
        speed = speeds[each.id].per_second() if each.id in speeds else None
        failed = each.by_state.get("failed", 0)
        table.add_row(
            _short(each.id),
            _short(each.pipeline),
            cell(each.state),
            ProgressBar(total=each.runs, completed=each.ended, width=16),
            f"{each.ended:,}/{each.runs:,}{pace(each, speed)}",
            Text(f"{failed:,}", STATE_STYLES["failed"] if failed else "dim"),
        )
    return _counted(table, active - min(most, len(progress)), "backfills")


def _attempts(attempts: Sequence[LiveAttempt], most: int, live: int) -> RenderableType:
    if not attempts:
        return Text("no live attempts", "dim")
    table = _table("attempt", "backfill", "from", "runs", "state", "for", "host", shrink=("backfill", "host"))
    for each in attempts[:most]:
        first = each.first_interval
        table.add_row(
            str(each.id),
            _short(each.backfill_id),
            "–" if first is None else moment(first, each.timezone),
            f"{each.runs:,}",
            cell(each.state),
            duration(each.seconds),
            _short(each.host),
        )
    return _counted(table, live - min(most, len(attempts)), "attempts")


def _hosts(hosts: Sequence[Host]) -> RenderableType:
    if not hosts:
        return Text("no run-starter is alive: nothing starts", "red")
    table = _table("host", "pool", "busy", "warm", "cold", "its drivers", shrink=("host", "its drivers"))
    for each in hosts:
        note = each.note or ("" if each.alive else "dead")
        seats = (str(number) for number in (each.busy, each.warm, each.cold))
        table.add_row(_short(each.name), _short(each.pool), *seats, _short(note))
    return table
