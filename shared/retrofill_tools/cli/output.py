"""Output: tables that fit the terminal for people, exactly one document, or names, for scripts."""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from retrofill.wording import moment as short_moment
from retrofill.wording import span
from retrofill_core.domain.estimate import Estimate
from retrofill_tools.cli.options import Form
from retrofill_tools.cli.yaml import as_yaml
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


def harmless(text: str) -> str:
    """Text of users for a terminal: control characters are shown, except those of colors and lines."""

    def shown(found: re.Match[str]) -> str:
        code = ord(found[0][0])
        if len(found[0]) > 1:
            return found[0]
        return chr(0x2400 + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"

    return _CONTROL.sub(shown, text)


@dataclass(frozen=True)
class Column:
    """A column of a list: its heading, and what it shows of each.

    ``keep``: it is never cut or folded. ``wide``: it is only shown with ``-o wide``.
    """

    heading: str
    of: Callable[[Any], Any]
    keep: bool = False
    wide: bool = False


def print_list(
    form: Form, found: Sequence[Any], columns: Sequence[Column], *, name: Callable[[Any], object], empty: str
) -> None:
    """Print what a command has found. ``name``: by which other commands know each; ``empty``: printed instead of no table."""
    if form == Form.NAME:
        for each in found:
            print_text(str(name(each)))
    elif form in (Form.JSON, Form.YAML):
        print_document(form, found)
    else:
        shown = [column for column in columns if form == Form.WIDE or not column.wide]
        rows = ([column.of(each) for column in shown] for each in found)
        keep = [column.heading for column in shown if column.keep]
        print_table([column.heading for column in shown], rows, empty=empty, keep=keep, wide=form == Form.WIDE)


def print_one(form: Form, found: Any, name: object, show: Callable[[], None]) -> None:
    """Print one thing: ``show`` prints it for people, ``name`` is by which other commands know it."""
    if form == Form.NAME:
        print_text(str(name))
    elif form in (Form.JSON, Form.YAML):
        print_document(form, found)
    else:
        show()


def print_document(form: Form, document: Any) -> None:
    if form == Form.YAML:
        typer.echo(as_yaml(json.loads(json.dumps(document, default=plain))), nl=False)
    else:
        print_json(document)


# Lines that no terminal wraps, and columns that need not be cut.
UNBOUNDED = 100_000


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, keep: Sequence[str] = (), wide: bool = False
) -> None:
    """Print a table, or ``empty`` if it has no rows.

    Columns in ``keep`` are never truncated or folded. It is as wide as the terminal or ``COLUMNS``; in a pipe, or if it is
    ``wide``, each row is one line.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column in keep, overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    out = console()
    if not table.row_count:
        print_text(empty)
    elif wide or not (out.is_terminal or "COLUMNS" in os.environ):
        out.width = UNBOUNDED
        with out.capture() as captured:
            out.print(table, crop=False)
        out.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    else:
        out.print(table)


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
    """One value as markup: moments in UTC, states colored, everything else unchanged."""
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = escape(harmless(str(value)))
    style = STATE_STYLES.get(text)
    return f"[{style}]{text}[/]" if style else text


def moment(value: datetime, zone: str) -> str:
    """A logical date in its pipeline's time zone, as short as possible."""
    return short_moment(value, ZoneInfo(zone))


def range_of(start: datetime, end: datetime, zone: str) -> str:
    """The range ``[start, end)`` in its pipeline's time zone, both ends included."""
    return span(start, end, ZoneInfo(zone))


def instant(value: datetime) -> str:
    """When something happened, in UTC, to the second."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def concurrency(requested: int, allowed: int | None) -> str:
    """How many attempts of a backfill may be live: its own limit, or that of its pipeline if that is lower."""
    allowed = requested if allowed is None else allowed
    why = f" ({requested:,} requested, the pipeline allows {allowed:,})" if requested > allowed else ""
    return f"{min(requested, allowed):,}{why}"


def short_code(sha256: str | None) -> str:
    """The code with this hash, or what is imported from its path."""
    return "not shipped, imported from its path" if sha256 is None else sha256[:12]


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
