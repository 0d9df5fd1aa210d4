"""The calendar of a backfill shows the worst run of each day, by color or by letter."""

from __future__ import annotations

from datetime import date, timedelta
from io import StringIO

from rich.console import Console

from retrofill_core.domain.run import MACHINE
from retrofill_tools.cli.showing import KINDS, calendar_lines, kind_of
from retrofill_tools.client.intervals import Calendar, Cell


def day(year: int, month: int, number: int, **by_state: int) -> Cell:
    return Cell(date(year, month, number), by_state)


def shown(unit: str, cells: list[Cell], *, colored: bool = False) -> list[str]:
    text = StringIO()
    out = Console(width=80, file=text, force_terminal=colored, color_system="truecolor" if colored else None)
    for line in calendar_lines(Calendar(unit, cells), colored=colored):
        out.print(line)
    return text.getvalue().splitlines()


def test_months_are_rows_and_each_state_has_a_letter() -> None:
    cells = [
        day(2013, 12, 30, succeeded=1),
        day(2013, 12, 31, failed=1),
        day(2014, 1, 1, running=1),
        day(2014, 1, 2, skipped=1),
        day(2014, 1, 4, queued=1),
        day(2014, 1, 5, cancelled=1),
    ]
    heading, december, january, legend = shown("day", cells)
    assert heading == "         1       5         10        15        20        25        30"
    assert december == "2013-12  " + "  " * 29 + "s F"
    assert january == "2014-01  r -   q c"
    assert legend == "         F failed  r in progress  q queued  c cancelled  s succeeded  - skipped"


def test_a_day_of_many_runs_shows_the_worst() -> None:
    hourly = [day(2014, 1, 1, succeeded=23, failed=1), day(2014, 1, 2, succeeded=20, queued=3, running=1)]
    assert shown("day", hourly)[1:] == ["2014-01  F r", "         F failed  r in progress  (each day: its worst run)"]


def test_years_are_rows_of_months() -> None:
    cells = [day(2013, 11, 1, succeeded=30), day(2013, 12, 1, succeeded=31), day(2014, 2, 1, queued=28)]
    heading, first, second, _ = shown("month", cells)
    assert heading == "         J F M A M J J A S O N D"
    assert first == "2013     " + "  " * 10 + "s s"
    assert second == "2014       q"


def test_colors_tell_the_states_apart_and_fit_80_columns() -> None:
    start = date(2013, 1, 1)
    cells = [Cell(start + timedelta(n), {"succeeded" if n % 2 else "failed": 1}) for n in range(365)]
    colored, plain = shown("day", cells, colored=True), shown("day", cells)
    assert "38;2;213;94;0m■" in colored[1]
    assert "38;2;0;158;115m■" in colored[1]
    assert [len(line) <= 80 for line in plain] == [True] * len(plain)
    assert len({color for _, _, color, _ in KINDS}) == len({letter for _, letter, _, _ in KINDS}) == len(KINDS)


def test_every_state_of_a_run_is_shown() -> None:
    for state in MACHINE.states:
        assert state in kind_of({state: 1})[3]
    assert calendar_lines(Calendar("day", []), colored=True) == []
