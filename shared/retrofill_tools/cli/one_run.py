"""``retrofill runs show`` and ``logs``: all that is known about one run, and what its attempt printed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer
from sqlalchemy import Connection, Engine

from retrofill.attempt_logs import Part
from retrofill.errors import UserError, WrongUsage, stored_line
from retrofill.masking import configure_masking
from retrofill.protocol.table_output import TableOutput
from retrofill.states import LIVE, AttemptMode, AttemptOutcome
from retrofill.wording import ordinal, plural, times
from retrofill_core.contract.base import MAX_INT
from retrofill_core.domain.schedule import range_bound, written_range
from retrofill_core.settings import Settings
from retrofill_tools.cli.arguments import read_bound
from retrofill_tools.cli.options import AsJson, Form, backfill_ids, takes_form
from retrofill_tools.cli.output import (
    duration,
    harmless,
    instant,
    print_facts,
    print_json,
    print_one,
    print_table,
    print_text,
)
from retrofill_tools.client import attempts, runs
from retrofill_tools.client.attempts import Attempt, NoLog, Source, find_log, lines
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.connect import load_settings, reading, reading_engine, snapshot
from retrofill_tools.client.runs import FullRun, Run, TaskRun, describe_run, runs_of_dates

POLL_SECONDS = 0.5
ATTEMPT = "attempt:"
# What both commands take.
Named = Annotated[
    str,
    typer.Argument(
        metavar="RUN|attempt:ID|BACKFILL",
        help="A run or an attempt by its id, or a backfill with a DATE.",
        autocompletion=backfill_ids,
    ),
]
Day = Annotated[str | None, typer.Argument(metavar="[DATE]", help="The run's logical date.")]


@takes_form
def show(named: Named, day: Day = None, *, form: Form) -> None:
    """Show one run: its state, attempts, tasks and error."""
    with reading(load_settings()) as conn:
        facts = describe_run(conn, find_run(conn, named, day))
    print_one(form, facts, facts.id, lambda: print_run(facts))


def print_run(facts: FullRun) -> None:
    zone = facts.timezone
    print_facts(
        {
            "run": str(facts.id),
            "backfill": facts.backfill_id,
            "pipeline": facts.pipeline,
            "interval": written_range(facts.interval_start, facts.interval_end, zone),
            "state": facts.state,
            "begun": times(facts.attempt) if facts.attempt else "not yet",
            "retried alone since (UTC)": facts.lost_at,
            "published again after (UTC)": facts.publish_after,
            "not published yet": facts.publish_error and stored_line(facts.publish_error),
            "queued (UTC)": facts.queued_at,
            "started (UTC)": facts.started_at,
            "finished (UTC)": facts.finished_at,
            "took": _took(facts.started_at, facts.finished_at),
            "code": (facts.code_sha256 or "")[:12] or None,
            "output": "\n".join(map(_named, (facts.outputs or {}).get("folders", []))) or None,
            "replaced, though changed since": ", ".join(facts.replaced_changes) or None,
        }
    )
    for attempt in facts.attempts:
        _print_attempt(attempt)
    _print_tasks(facts.tasks, facts.attempt)
    _print_error(facts)
    if any(each.began_at for each in facts.attempts):
        print_text(f"\nlog: retrofill runs logs {facts.id}")


def _named(output: str) -> str:
    """The path of a folder, or the name of a table."""
    table = TableOutput.of(output)
    return output if table is None else table.table


def _print_attempt(attempt: Attempt) -> None:
    runs = "" if attempt.runs == 1 else f", {plural(attempt.runs, 'run')} {attempt.mode}"
    publishes = ", only publishes" if attempt.mode == "publish" else ""
    how = attempt.outcome or attempt.state
    print_text(f"\nattempt {attempt.id}{runs}{publishes} on {attempt.host}: {how}")
    times = {"claimed": attempt.claimed_at, "began": attempt.began_at, "ended": attempt.ended_at}
    said = ", ".join(f"{name} {instant(at)}" for name, at in times.items() if at is not None)
    took = _took(attempt.began_at, attempt.ended_at)
    print_text(f"  {said} (UTC)" + ("" if took is None else f", took {took}"))
    if attempt.spark_app_id is not None:
        print_text(f"  Spark {attempt.spark_app_id}" + (f", {attempt.spark_ui}" if attempt.spark_ui else ""))
    if attempt.reason is not None:
        print_text(f"  why: {attempt.reason}")


def _print_tasks(tasks: Sequence[TaskRun], last: int) -> None:
    """The tasks of the last time; those before are counted."""
    mine = [task for task in tasks if task.attempt == last]
    if not mine:
        return
    print_text("")
    print_table(
        ["task", "state", "tries", "started (UTC)", "took"],
        [
            [
                task.task,
                task.state,
                task.try_number,
                task.started_at,
                _took(task.started_at, task.finished_at) or "–",
            ]
            for task in mine
        ],
        empty="",
        keep=["state", "tries", "took"],
    )
    if last > 1:
        print_text(f"when it began for the {ordinal(last)} time; --json has the times before")


def _print_error(facts: FullRun) -> None:
    """Its error, and those of its tasks that failed in the end, each once."""
    errors = [(f"task {task.task}: ", task.error) for task in facts.tasks if task.attempt == facts.attempt]
    seen: set[str] = set()
    for what, error in [*errors, ("", facts.error)]:
        if error is not None and str(error) not in seen:
            seen.add(str(error))
            print_text(f"\n{what}{error.get('type')}: {error.get('message')}")
            print_text((error.get("traceback") or "").rstrip() or "(no traceback)")
    for loss in facts.losses:
        note = "" if loss.get("counted", True) else " (not counted)"
        print_text(f"\nthe {ordinal(loss['attempt'])} time, the driver was lost: {loss['reason']}{note}")


def _took(started: datetime | None, finished: datetime | None) -> str | None:
    return None if started is None or finished is None else duration((finished - started).total_seconds())


def logs(
    named: Named,
    day: Day = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the attempt ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the log of an attempt, or of a run's last attempt, while it runs or afterwards."""
    if follow and as_json:
        raise WrongUsage("--follow and --json cannot be combined: --json is one document")
    settings = load_settings()
    configure_masking(settings.redact)
    with reading_engine(settings) as engine:
        with snapshot(engine) as conn:
            attempt, part = find_attempt(conn, named, day)
        source = _source(settings, engine, attempt, wait=follow)
        goes_on = _until_ended(engine, attempt.id) if follow else lambda: False
        found = _of_run(_readable(lines(source, goes_on), attempt.id), None if part is None else part.id)
        if as_json:
            return print_json({"attempt": attempt, "run_id": part and part.id, "lines": list(found)})
        _print_log(found)
        with snapshot(engine) as conn:
            _print_end(attempts.find_attempt(conn, attempt.id))
    return None


def _readable(found: Iterator[str], id: int) -> Iterator[str]:
    try:
        yield from found
    except OSError as e:
        raise UserError(f"the log of attempt {id} cannot be read: {e}") from e


def _of_run(found: Iterator[str], run_id: int | None) -> Iterator[str]:
    part = Part(run_id)
    return (line for line in found if part.has(line))


def _until_ended(engine: Engine, id: int) -> Callable[[], bool]:
    def goes_on() -> bool:
        time.sleep(POLL_SECONDS)
        with snapshot(engine) as conn:
            row = attempts.find_attempt(conn, id)
        return row is not None and row.state in LIVE

    return goes_on


def _source(settings: Settings, engine: Engine, attempt: Attempt, *, wait: bool) -> Source:
    """Where the log is. With ``wait``, one of a live attempt may still begin. Raises ``NoLog``."""
    while True:
        try:
            return find_log(settings, engine, attempt)
        except NoLog as e:
            if not (wait and e.may_come):
                raise
            time.sleep(POLL_SECONDS)


def _print_log(found: Iterator[str]) -> None:
    shown = harmless if sys.stdout.isatty() else str
    try:
        for line in found:
            sys.stdout.write(shown(line) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads it has seen enough. Python would complain again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None


def _print_end(attempt: Attempt | None) -> None:
    """Say how the attempt ended if its log does not."""
    if attempt is None or attempt.ended_at is None or attempt.outcome == AttemptOutcome.DONE:
        return
    why = f": {attempt.reason}" if attempt.reason else ""
    line = f"attempt {attempt.id} ended {attempt.outcome} at {instant(attempt.ended_at)} (UTC){why}"
    typer.echo(harmless(line), err=True)


def find_run(conn: Connection, text: str, day: str | None) -> Run:
    """A run by its id, by its attempt and the date if that had several, or by its backfill and date.

    Raises ``UserError`` and ``WrongUsage``.
    """
    attempt = _attempt(conn, text)
    if attempt is not None:
        return _of_attempt(conn, attempt, day)
    if day is not None:
        return _of_backfill(conn, text, day)
    id = _number(text)
    if id is None:
        raise WrongUsage(
            f"{text!r} is not the id of a run: add the DATE if it is a backfill ('retrofill runs list' shows its runs)"
        )
    run = runs.find_run(conn, id)
    if run is None:
        raise UserError(
            f"there is no run {id}: 'retrofill runs list BACKFILL' shows those of a backfill; an attempt is {ATTEMPT}{id}"
        )
    return run


def find_attempt(conn: Connection, text: str, day: str | None) -> tuple[Attempt, Run | None]:
    """An attempt, and the run that is asked for if it is not all of them. Named as for ``find_run``."""
    attempt = _attempt(conn, text)
    if attempt is not None:
        return attempt, None if day is None else _part(attempt, _of_attempt(conn, attempt, day))
    run = find_run(conn, text, day)
    attempt = None if run.attempt_id is None else attempts.find_attempt(conn, run.attempt_id)
    # A run that replaces another begins with the attempt of that one.
    if attempt is None or attempt.claimed_at < run.queued_at:
        raise UserError(f"run {run.id} is {run.state}: no driver has been given it yet")
    return attempt, _part(attempt, run)


def _part(attempt: Attempt, run: Run) -> Run | None:
    """Whose part of the log is asked for: runs of a range have none of their own."""
    return None if attempt.mode == AttemptMode.RANGE else run


def _attempt(conn: Connection, text: str) -> Attempt | None:
    """The attempt that ``attempt:ID`` names; ``None``: this names none. Raises ``UserError`` if it does not exist."""
    if not text.startswith(ATTEMPT):
        return None
    id = _number(text.removeprefix(ATTEMPT))
    attempt = None if id is None else attempts.find_attempt(conn, id)
    if attempt is None:
        raise UserError(f"there is no {text}: 'retrofill runs show' and 'retrofill backfill show' name attempts")
    return attempt


def _of_attempt(conn: Connection, attempt: Attempt, day: str | None) -> Run:
    if day is None and attempt.runs > 1:
        raise WrongUsage(
            f"attempt {attempt.id} has {plural(attempt.runs, 'run')}: add the DATE of one "
            f"('retrofill runs list {attempt.backfill_id}' shows them)"
        )
    run = runs.first_run(conn, attempt) if day is None else _of_backfill(conn, attempt.backfill_id, day)
    if run is None:
        raise UserError(f"the run of attempt {attempt.id} was purged")
    if not attempt.has(run.position):
        raise UserError(f"attempt {attempt.id} did not have run {run.id}: 'retrofill runs show {run.id}'")
    return run


def _of_backfill(conn: Connection, backfill: str, day: str) -> Run:
    start, end = bounds(day, find_backfill(conn, backfill).definition.timezone)
    ids = runs_of_dates(conn, backfill, start, end)
    if not ids:
        raise UserError(f"backfill {backfill} has no run of {day}: retrofill runs list {backfill}")
    if len(ids) > 1:
        raise UserError(
            f"{len(ids):,} runs of backfill {backfill} begin on {day}: add the time, like {start.isoformat()}"
        )
    run = runs.find_run(conn, ids[0])
    assert run is not None
    return run


def bounds(text: str, zone: str) -> tuple[datetime, datetime]:
    """The moments that a date of a time zone, or a single moment, stands for."""
    found = read_bound("DATE", text)
    try:
        first, last = (range_bound(found, zone, end=end) for end in (False, True))
        return first.astimezone(ZoneInfo(zone)), (last + datetime.resolution).astimezone(ZoneInfo(zone))
    except (ValueError, OverflowError) as e:
        raise WrongUsage(f"DATE {text.strip()[:40]} is outside the calendar") from e


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_INT else None
