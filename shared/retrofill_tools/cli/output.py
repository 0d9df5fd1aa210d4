"""Output: tables that fit 80 columns for people, exactly one JSON document for scripts."""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from retrofill_core.domain.estimate import Estimate
from retrofill_tools.client.documents import plain
from retrofill_tools.client.previews import Expectation

STATE_STYLES = {
    "succeeded": "green",
    "met": "green",
    "failed": "red",
    "missed": "red",
    "running": "cyan",
    "armed": "cyan",
    "queued": "dim",
    "pending": "dim",
    "paused": "yellow",
    "in_review": "yellow",
    "cancelling": "yellow",
    "cancelled": "yellow",
    "void": "dim",
}
# Colors, or what terminals would execute: titles, the clipboard, the position to write at.
_CONTROL = re.compile(r"\x1b\[[0-9;:]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def console(*, stderr: bool = False) -> Console:
    """A console without number highlighting and emoji.

    Created on use, because output may be redirected.
    """
    return Console(stderr=stderr, highlight=False, emoji=False)


def print_json(document: Any) -> None:
    """Print one JSON document to standard output."""
    other = codecs.lookup(sys.stdout.encoding or "utf-8").name != "utf-8"
    json.dump(document, sys.stdout, indent=2, default=plain, ensure_ascii=other)
    sys.stdout.write("\n")


def print_text(text: str) -> None:
    """Print a line without interpreting markup."""
    console().print(harmless(text), markup=False, soft_wrap=True)


def warn(problems: Iterable[str]) -> None:
    """Print each once on stderr, where scripts do not read."""
    for problem in dict.fromkeys(problems):
        typer.echo(f"retrofill: {harmless(problem)}", err=True)


def is_confirmed(question: str) -> bool:
    """Ask on standard error, to keep standard output for results."""
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def harmless(text: str) -> str:
    """Text of users for a terminal: control characters are shown, except those of colors and lines."""

    def shown(found: re.Match[str]) -> str:
        code = ord(found[0][0])
        if len(found[0]) > 1:
            return found[0]
        return chr(0x2400 + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"

    return _CONTROL.sub(shown, text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, keep: Sequence[str] = ()) -> None:
    """Print a table, or ``empty`` if it has no rows.

    Columns in ``keep`` are never truncated or folded.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column in keep, overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    if table.row_count:
        console().print(table)
    else:
        print_text(empty)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values below each other, without those that are ``None``."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            table.add_row(name, cell(value))
    console().print(table)


def cell(value: Any) -> str:
    """One value as markup: moments short and in UTC, states colored, everything else unchanged."""
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = escape(harmless(str(value)))
    style = STATE_STYLES.get(text)
    return f"[{style}]{text}[/]" if style else text


def moment(value: datetime, zone: str = "UTC") -> str:
    """A moment in a time zone, to the second. Midnight is shown as a date."""
    value = value.astimezone(ZoneInfo(zone))
    if (value.hour, value.minute, value.second) == (0, 0, 0):
        return value.strftime("%Y-%m-%d")
    return value.strftime("%Y-%m-%d %H:%M:%S")


def at_once(asked: int, allowed: int | None, what: str = "") -> str:
    """How many attempts of a backfill may be live: its own limit, or that of its pipeline if that is lower."""
    allowed = asked if allowed is None else allowed
    why = f" ({asked:,} asked, the pipeline allows {allowed:,})" if asked > allowed else ""
    return f"{min(asked, allowed):,}{what}{why}"


def counts(by_name: Mapping[str, int]) -> str:
    """``3 failed, 10 succeeded``."""
    return ", ".join(f"{count:,} {name}" for name, count in sorted(by_name.items()) if count) or "none"


def duration(seconds: float) -> str:
    """``1:02:03``, or ``2 days, 1:02:03``."""
    return str(timedelta(seconds=round(seconds)))


def time_left(found: Estimate) -> str:
    """The time left and its range."""
    return f"{duration(found.seconds)} left ({duration(found.low)} to {duration(found.high)})"


def cost(used: Mapping[str, Any]) -> str | None:
    """What Spark used, in one line; ``None``: it did not tell."""
    if used.get("core_seconds") is None:
        return None
    parts = [f"{used['core_seconds'] / 3600:,.2f} core-hours"]
    if used.get("shuffle_bytes") is not None:
        parts.append(f"{used['shuffle_bytes'] / 1e9:,.2f} GB shuffled")
    parts += [
        f"{used[name]:,} {name.replace('_', ' ')}"
        for name in ("rows_read", "rows_written")
        if used.get(name) is not None
    ]
    return ", ".join(parts)


def expectation(found: Expectation) -> str:
    """A preview for people."""
    times = found.estimate
    if times is None:
        return found.why
    took = f"would take about {duration(times.seconds)} ({duration(times.low)} to {duration(times.high)})"
    hours = "" if found.core_hours is None else f" and {found.core_hours:,.2f} core-hours"
    return f"{took}{hours}, {found.why}"
