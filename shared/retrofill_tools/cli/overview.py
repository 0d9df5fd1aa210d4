"""``retrofill watch``: everything that is active, on one screen."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from retrofill_core.store.clock import database_now
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import STATE_STYLES, cell, console, duration, moment, print_json
from retrofill_tools.cli.watching import CHECKS_PER_SECOND, LOAD, OUTAGE_SECONDS, Progress, Speed, pace
from retrofill_tools.client.attempts import LiveAttempt, live_attempts
from retrofill_tools.client.backfills import ActiveBackfill, active_backfills, count_active
from retrofill_tools.client.connect import load_settings, reading_engine, snapshot
from retrofill_tools.client.hosts import Host, find_hosts

# More do not fit on any screen.
MOST = 100
# Lines that are no rows: headings, and the counts of hosts.
FRAME = 9


@dataclass(frozen=True)
class Overview:
    """What is active, and how many there are of backfills and attempts."""

    at: datetime
    active_backfills: int
    live_attempts: int
    backfills: Sequence[ActiveBackfill]
    attempts: Sequence[LiveAttempt]
    hosts: Sequence[Host]


def register(app: typer.Typer) -> None:
    app.command()(watch)


def watch(as_json: AsJson = False) -> None:
    """Show active backfills, live attempts and hosts, live on a terminal; Ctrl-C ends it."""
    out = console()
    with reading_engine(load_settings()) as engine:
        if as_json or not out.is_terminal:
            found = read(engine)
            return print_json(found) if as_json else out.print(render(found, {}, out))
        try:
            _live(engine, out)
        except KeyboardInterrupt:
            return None


def read(engine: Engine) -> Overview:
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


def _live(engine: Engine, out: Console) -> None:
    speeds: dict[str, Speed] = {}
    answered = time.monotonic()
    with Live(console=out, auto_refresh=False, screen=True) as live:
        while True:
            began = time.monotonic()
            try:
                found = read(engine)
            except OperationalError:
                if began > answered + OUTAGE_SECONDS:
                    raise
                time.sleep(1)
                continue
            answered = time.monotonic()
            for progress in _progress(found):
                speeds.setdefault(progress.id, Speed()).add(progress)
            live.update(render(found, speeds, out), refresh=True)
            time.sleep(max(1 / CHECKS_PER_SECOND, (time.monotonic() - began) / LOAD))


def _progress(found: Overview) -> list[Progress]:
    return [Progress(row.id, row.pipeline, row.state, row.runs, row.by_state, found.at) for row in found.backfills]


def render(found: Overview, speeds: Mapping[str, Speed], out: Console) -> RenderableType:
    """The screen. What does not fit is counted."""
    room = max(2, out.height - FRAME - len(found.hosts)) if out.is_terminal else 2 * MOST
    progress, attempts = _progress(found), found.attempts
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
    counted = f"{active:,} active backfills, {live:,} live attempts"
    return Text.assemble(("retrofill", "bold"), f"  {counted}  ", (f"{moment(at)} UTC", "dim"), "\n")


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
