"""The details of one backfill, printed, with a calendar: a row per month with a cell per day, or per year with a cell per month."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from rich.text import Text

from retrofill.wording import ordinal, plural, times
from retrofill_core.domain.run import RunState
from retrofill_core.domain.schedule import written_range
from retrofill_tools.cli import output
from retrofill_tools.cli.output import console, counts, duration, instant, moment, print_facts, print_text
from retrofill_tools.client.backfills import FullBackfill, TimeLeft
from retrofill_tools.client.intervals import Calendar, Cell
from retrofill_tools.client.runs import Error, FailedRun, Suspect

TRACEBACK_LINES = 4
MAX_CHANGED = 10
PURGED = "details and runs were purged, except runs that later backfills depend on"
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


def print_backfill(facts: FullBackfill) -> None:
    rate, zone = facts.runs_per_second, facts.timezone
    out = console()
    for line in calendar_lines(facts.calendar, colored=out.color_system is not None):
        out.print(line)
    if facts.calendar.cells:
        print_text("")
    print_facts(
        {
            "id": facts.id,
            "pipeline": facts.pipeline,
            "state": facts.state,
            "undoes": facts.undoes,
            "held back": facts.held_back,
            "canceled by": facts.cancel_cause,
            "range": written_range(facts.range_start, facts.range_end, zone),
            "runs": f"{facts.runs:,}: {counts(facts.by_state)}",
            "purged": PURGED if facts.purged else None,
            "skipped": counts(facts.skipped) if facts.skipped else None,
            "started again": facts.runs_started_again or None,
            "concurrency": output.concurrency(facts.max_active_runs, facts.pipeline_max_active_runs),
            "batch size": _batch_size(facts),
            "order": "backwards" if facts.run_backwards else None,
            "reprocess": facts.reprocess_behavior,
            "on run failure": facts.on_run_failure,
            "conf": json.dumps(facts.conf, ensure_ascii=False) if facts.conf else None,
            "code": _code(facts),
            "requested by": facts.triggered_by,
            "requested (UTC)": facts.requested_at,
            "first start (UTC)": facts.first_started_at,
            "ended (UTC)": facts.ended_at,
            "took": _took(facts),
            "speed": None if rate is None else f"{rate:,.2f} runs/s",
            "time left": _left(facts.estimate),
            "cost": None if facts.cost is None else output.cost(facts.cost),
            "budget": None if facts.budget is None else _limits(facts.budget),
            "changed since": _changed(facts) or None,
        }
    )
    _print_failures(facts)
    _print_suspects(facts)
    _print_attempts(facts)
    _print_undelivered(facts)


def _changed(facts: FullBackfill) -> str:
    """The intervals that somebody has changed since they were approved."""
    first = [moment(each, facts.timezone) for each in facts.changed_intervals[:MAX_CHANGED]]
    more = len(facts.changed_intervals) - len(first)
    return ", ".join([*first, *([f"and {more:,} more"] if more else [])])


def _left(found: TimeLeft | None) -> str | None:
    if found is None:
        return None
    return f"{duration(found.seconds)} ({duration(found.low)} to {duration(found.high)})"


def _limits(budget: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={each.isoformat() if name == 'until' else each}" for name, each in budget.items())


def _batch_size(facts: FullBackfill) -> str | int | None:
    if facts.batch_now is not None:
        return f"now {facts.batch_now.runs:,}: {facts.batch_now.why}"
    return None if facts.batch_size == 1 else facts.batch_size


def _code(facts: FullBackfill) -> str | None:
    """The code archives that its runs used (shortened hashes), or will use."""
    used = {(sha256 or "in place")[:12]: number for sha256, number in facts.runs_by_code.items()}
    if facts.undoes is not None:
        return None
    if facts.latest_code:
        return f"what is applied when each run starts{f': {counts(used)}' if used else ''}"
    planned = counts(used) if len(used) > 1 else (facts.code_sha256 or "")[:12]
    applied = (facts.applied_code_sha256 or "")[:12]
    if applied in ("", (facts.code_sha256 or "")[:12]):
        return planned or None
    retries = "a retry uses it" if facts.ended_at is not None else "retry --latest-code uses it"
    return f"{planned or 'imported from its path'}; {applied} is applied since ({retries})"


def _took(facts: FullBackfill) -> str | None:
    if facts.ended_at is None:
        return None
    return duration((facts.ended_at - facts.requested_at).total_seconds())


def _print_failures(facts: FullBackfill) -> None:
    zone = facts.timezone
    for run in facts.failed_runs:
        print_text("")
        print_text(f"run {run.id} of {moment(run.interval_start, zone)} failed, begun {times(run.attempt)}")
        _print_losses(run)
        for task in run.failed_tasks:
            _print_error(f"task {task.task}, try {task.try_number}: ", task.error)
        if not run.failed_tasks:
            _print_error("", run.error)
    hidden = facts.by_state.get("failed", 0) - len(facts.failed_runs)
    if hidden > 0:
        print_text(f"\n… and {plural(hidden, 'more failed run')} (--failures)")


def _print_suspects(facts: FullBackfill) -> None:
    """Say what is retried alone and why."""
    for run in facts.suspects:
        print_text("")
        day = moment(run.interval_start, facts.timezone)
        print_text(f"run {run.id} of {day} ({run.state}) is retried alone, because its driver was lost")
        _print_losses(run)


def _print_undelivered(facts: FullBackfill) -> None:
    """Say which receivers have not got their callbacks, and why."""
    for each in facts.undelivered:
        print_text("")
        number = counts({"waiting": each.waiting, "failed": each.failed})
        print_text(f"callbacks of {each.kind} {each.receiver}: {number}, since {instant(each.since)} UTC")
        if each.down_since is not None and each.next_call_at is not None:
            since, at = instant(each.down_since), instant(each.next_call_at)
            print_text(f"  it has been down since {since} UTC, and is called again at {at} UTC")
        if each.last_error:
            print_text(f"  last error: {' '.join(each.last_error.split())[:500]}")
        print_text(f"  retrofill callbacks list --backfill {facts.id}")


def _print_losses(run: FailedRun | Suspect) -> None:
    for loss in run.losses:
        note = "" if loss.get("counted", True) else " (not counted)"
        print_text(f"  the {ordinal(loss['attempt'])} time, the driver was lost: {loss['reason']}{note}")


def _print_attempts(facts: FullBackfill) -> None:
    if facts.attempts:
        print_text("")
    for attempt in facts.attempts:
        first, last = attempt.first_interval, attempt.last_interval
        dates = dict.fromkeys(moment(each, facts.timezone) for each in (first, last) if each is not None)
        of = f" of {' – '.join(dates)}" if dates else ""
        why = f": {attempt.reason}" if attempt.reason else ""
        ended = f"{attempt.outcome} at {instant(attempt.ended_at)} (UTC)"
        print_text(f"attempt {attempt.id}{of} {ended} on {attempt.host}{why}")


def _print_error(what: str, error: Error | None) -> None:
    if error is None:
        print_text(f"  {what}no error is recorded")
        return
    print_text(f"  {what}{error.get('type')}: {error.get('message')}")
    for line in (error.get("traceback") or "").rstrip().splitlines()[-TRACEBACK_LINES:]:
        print_text(f"    {line}")


def calendar_lines(calendar: Calendar, *, colored: bool) -> list[Text]:
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
