"""``retrofill runs logs``: what an attempt printed, wherever it ran."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer
from sqlalchemy import Engine

from retrofill.attempt_logs.marks import Part
from retrofill.errors import UserError, WrongUsage
from retrofill.masking import configure_masking
from retrofill.states.attempt import LIVE, AttemptOutcome
from retrofill_core.settings import Settings
from retrofill_tools.cli.completion import backfill_ids
from retrofill_tools.cli.finding import find_attempt
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import harmless, moment, print_json
from retrofill_tools.client import attempts
from retrofill_tools.client.attempts import Attempt, NoLog, Source, find_log, lines
from retrofill_tools.client.connect import load_settings, reading_engine, snapshot

POLL_SECONDS = 0.5


def logs(
    target: Annotated[
        str,
        typer.Argument(
            metavar="ATTEMPT|run:ID|BACKFILL",
            help="An attempt by its id, a run, or a backfill if DATE is given.",
            autocompletion=backfill_ids,
        ),
    ],
    day: Annotated[
        str | None, typer.Argument(metavar="[DATE]", help="Only what the run of this logical date printed.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the attempt has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the log of an attempt, during and after it. Of a run, that of its last attempt."""
    if follow and as_json:
        raise WrongUsage("--follow and --json cannot be combined: --json is one document")
    settings = load_settings()
    configure_masking(settings.redact)
    with reading_engine(settings) as engine:
        with snapshot(engine) as conn:
            attempt, part = find_attempt(conn, target, day)
        source = _source(settings, engine, attempt, wait=follow)
        goes_on = _until_ended(engine, attempt.id) if follow else lambda: False
        found = _of_run(_readable(lines(source, goes_on), attempt.id), None if part is None else part.id)
        if as_json:
            return print_json({"attempt": attempt, "run_id": part and part.id, "lines": list(found)})
        _print(found)
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


def _print(found: Iterator[str]) -> None:
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
    line = f"attempt {attempt.id} ended {attempt.outcome} at {moment(attempt.ended_at)} (UTC){why}"
    typer.echo(harmless(line), err=True)
