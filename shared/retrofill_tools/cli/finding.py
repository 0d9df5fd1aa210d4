"""Finds the run or attempt that a user names."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from retrofill.errors import UserError, WrongUsage
from retrofill.states.attempt import AttemptMode
from retrofill_core.contract.base import MAX_INT
from retrofill_core.domain.schedule import range_bound
from retrofill_tools.cli.arguments import read_bound
from retrofill_tools.client import attempts, runs
from retrofill_tools.client.attempts import Attempt
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.runs import Run, runs_of_dates

RUN = "run:"


def find_run(conn: Connection, text: str, day: str | None) -> Run:
    """A run by its id, or by its backfill and date. Raises ``UserError`` and ``WrongUsage``."""
    if day is not None:
        return _of_backfill(conn, text, day)
    id = _number(text.removeprefix(RUN))
    if id is None:
        raise WrongUsage(
            f"{text!r} is not the id of a run: add the date if it is a backfill ('retrofill runs list' has both)"
        )
    run = runs.find_run(conn, id)
    if run is None:
        raise UserError(f"there is no run {id}: 'retrofill runs list BACKFILL' shows those of a backfill")
    return run


def find_attempt(conn: Connection, text: str, day: str | None) -> tuple[Attempt, Run | None]:
    """An attempt, and the run that is asked for if it is not all of them.

    ``text`` is the id of the attempt, ``run:ID``, or a backfill, which needs ``day``.
    """
    id = _number(text)
    attempt = None if id is None else attempts.find_attempt(conn, id)
    if attempt is not None:
        return attempt, None if day is None else _of_attempt(conn, attempt, day)
    if id is not None and day is None:
        raise UserError(f"there is no attempt {id}; a run is named {RUN}{id}, or by its backfill and DATE")
    if day is None and not text.startswith(RUN):
        raise WrongUsage(f"which run of backfill {text}? Add its DATE, or name an attempt by its number")
    run = find_run(conn, text, day)
    attempt = None if run.attempt_id is None else attempts.find_attempt(conn, run.attempt_id)
    # A run that replaces another begins with the attempt of that one.
    if attempt is None or attempt.claimed_at < run.queued_at:
        raise UserError(f"run {run.id} is {run.state}: no driver has been given it yet")
    # Runs of a range have no part of their own.
    return attempt, None if attempt.mode == AttemptMode.RANGE else run


def _of_attempt(conn: Connection, attempt: Attempt, day: str) -> Run | None:
    run = _of_backfill(conn, attempt.backfill_id, day)
    if not attempt.has(run.position):
        raise UserError(f"attempt {attempt.id} did not have run {run.id}: 'retrofill runs show {run.id}'")
    return None if attempt.mode == AttemptMode.RANGE else run


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
