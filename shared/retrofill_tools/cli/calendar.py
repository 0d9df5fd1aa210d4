"""A backfill as a calendar: a row per month with a cell per day, or per year with a cell per month."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date

from rich.text import Text

from retrofill_core.domain.run import RunState
from retrofill_tools.client.intervals import Calendar, Cell

BLOCK = "■"
S = RunState
# What a cell shows: the first of these that one of its intervals has. The letter is for output
# without color; the colors are Okabe and Ito's, which people with any color vision can tell apart.
KINDS: tuple[tuple[str, str, str, frozenset[str]], ...] = (
    ("failed", "F", "#d55e00", frozenset({S.FAILED})),
    ("in progress", "r", "#56b4e9", frozenset({S.STARTING, S.RUNNING, S.PUBLISHING, S.STAGED})),
    ("queued", "q", "#999999", frozenset({S.QUEUED})),
    ("cancelled", "c", "#cc79a7", frozenset({S.CANCELLED})),
    ("succeeded", "s", "#009e73", frozenset({S.SUCCEEDED})),
    ("skipped", "-", "#555555", frozenset({"skipped"})),
)


def render(calendar: Calendar, *, colored: bool) -> list[Text]:
    """The lines of the calendar and its legend, at most 80 columns wide; none if there are no intervals."""
    cells = calendar.cells
    if not cells:
        return []
    by_start = {cell.start: cell for cell in cells}
    rows = _months(by_start) if calendar.unit == "day" else _years(by_start)
    lines = [_heading(calendar.unit)]
    for label, starts in rows:
        line = Text(f"{label:<9}")
        for start in starts:
            line.append_text(_drawn(None if start is None else by_start.get(start), colored)).append(" ")
        line.rstrip()
        lines.append(line)
    return [*lines, _legend(cells, calendar.unit, colored)]


def kind_of(by_state: Mapping[str, int]) -> tuple[str, str, str, frozenset[str]]:
    """What a cell shows."""
    return next(kind for kind in KINDS if any(by_state.get(state) for state in kind[3]))


def _heading(unit: str) -> Text:
    names = "JFMAMJJASOND" if unit == "month" else [str(n) if n == 1 or n % 5 == 0 else "" for n in range(1, 32)]
    return Text(f"{'':<9}{''.join(f'{name:<2}' for name in names)}".rstrip(), style="dim")


def _months(by_start: Mapping[date, Cell]) -> Iterable[tuple[str, list[date | None]]]:
    month, last = min(by_start).replace(day=1), max(by_start)
    while month <= last:
        yield f"{month:%Y-%m}", [_day(month, n) for n in range(1, 32)]
        month = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)


def _day(month: date, n: int) -> date | None:
    try:
        return month.replace(day=n)
    except ValueError:  # not every month has 31
        return None


def _years(by_start: Mapping[date, Cell]) -> Iterable[tuple[str, list[date | None]]]:
    for year in range(min(by_start).year, max(by_start).year + 1):
        yield str(year), [date(year, month, 1) for month in range(1, 13)]


def _drawn(cell: Cell | None, colored: bool) -> Text:
    if cell is None:
        return Text(" ")
    _, letter, color, _ = kind_of(cell.by_state)
    return Text(BLOCK, color) if colored else Text(letter)


def _legend(cells: Sequence[Cell], unit: str, colored: bool) -> Text:
    there = {kind_of(cell.by_state)[0] for cell in cells}
    legend = Text(" " * 9)
    for name, letter, color, _ in KINDS:
        if name in there:
            legend.append(BLOCK if colored else letter, color if colored else "").append(f" {name}  ", "dim")
    if any(sum(cell.by_state.values()) > 1 for cell in cells):
        legend.append(f"(each {unit}: its worst run)", "dim")
    legend.rstrip()
    return legend
