"""``retrofill deadlines``: list and show deadlines, and watch misses as they happen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import typer

from retrofill.errors import UserError, WrongUsage
from retrofill.sdk.names import seconds_of
from retrofill_core.contract.base import MAX_INT
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.deadline import DeadlineState
from retrofill_tools.cli.options import Form, Limit, PipelineFilter, takes_form
from retrofill_tools.cli.output import Column, print_facts, print_list, print_one, print_text
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.deadlines import CalledDeadline, Deadline, find_deadline, find_deadlines
from retrofill_tools.client.kafka import follow

group = typer.Typer(name="deadlines", help="List and show deadlines, watch misses.", no_args_is_help=True)


@group.command("list")
@takes_form
def list_(
    state: Annotated[DeadlineState | None, typer.Option(help="Only deadlines in this state.")] = None,
    pipeline: PipelineFilter = None,
    backfill: Annotated[str | None, typer.Option(metavar="ID", help="Only this backfill.")] = None,
    due_within: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only armed ones due within 90s, 5m, 2h …, earliest first.")
    ] = None,
    limit: Limit = 50,
    *,
    form: Form,
) -> None:
    """List deadlines, latest first."""
    if due_within is not None and state not in (None, DeadlineState.ARMED):
        raise WrongUsage("--due-within selects armed deadlines: omit --state")
    soon = None if due_within is None else _duration(due_within)
    filters = {"state": state, "pipeline": pipeline, "backfill_id": backfill}
    with reading(load_settings()) as conn:
        rows = find_deadlines(conn, filters, limit, soon)
    columns = [
        Column("id", lambda each: str(each.id), keep=True),
        Column("alert", lambda each: each.alert),
        Column("pipeline", lambda each: each.pipeline),
        Column("of", _subject),
        Column("due (UTC)", lambda each: each.due_at),
        Column("state", lambda each: each.state, keep=True),
        Column("why", _why),
    ]
    print_list(form, rows, columns, name=lambda each: each.id, empty="no deadlines")


def _duration(text: str) -> timedelta:
    try:
        return timedelta(seconds=seconds_of(text))
    except (ValueError, OverflowError) as e:
        raise WrongUsage(f"--due-within: {e}") from e


def _subject(row: Deadline) -> Any:
    """What the deadline is for: a run by its logical date, one of its tasks, or the backfill."""
    if row.run_id is None:
        return f"backfill {row.backfill_id}"
    day = row.interval_start
    return day if row.task is None else f"{row.task} of {day:%Y-%m-%d %H:%M}"


def _why(row: Deadline) -> str:
    return row.reason or ("done since" if row.recovered_at is not None else "")


@group.command()
@takes_form
def show(
    id: Annotated[int, typer.Argument(metavar="ID", min=1, max=MAX_INT, help="The deadline's id.")],
    *,
    form: Form,
) -> None:
    """Show one deadline: what it is for, when it is due, and its outcome."""
    with reading(load_settings()) as conn:
        row = find_deadline(conn, id)
    if row is None:
        raise UserError(f"there is no deadline {id}: see 'retrofill deadlines list'")
    print_one(form, row, row.id, lambda: _print_deadline(row))


def _print_deadline(row: CalledDeadline) -> None:
    print_facts(
        {
            "id": str(row.id),
            "alert": row.alert,
            "pipeline": row.pipeline,
            "backfill": row.backfill_id,
            "run": None if row.run_id is None else f"{row.run_id} of {row.interval_start:%Y-%m-%d %H:%M} UTC",
            "task": row.task,
            "counts from": f"{row.reference} {row.interval_seconds or 0:+g} s",
            "due (UTC)": row.due_at,
            "state": row.state,
            "why": row.reason,
            "decided (UTC)": row.decided_at,
            "done since (UTC)": row.recovered_at,
            "in the digest": None if row.digest_id is None else str(row.digest_id),
            "callback": row.callback,
            "called": _called(row),
            "last error": row.callback_error,
        }
    )


def _called(row: CalledDeadline) -> str | None:
    if row.callback_state is None:
        return None
    return f"{row.callback_state}, calls: {row.callback_attempts}"


@group.command()
def watch(
    pipeline: PipelineFilter = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start from the earliest event that the topic still has.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")] = False,
) -> None:
    """Show misses, digests and recoveries as they are published, until Ctrl-C."""
    for event in follow(load_settings(), Topic.DEADLINE_MISSED, from_beginning=from_beginning):
        if pipeline in (None, event.get("pipeline")):
            print_text(json.dumps(event, ensure_ascii=False) if as_json else _line(event))


def _line(event: Mapping[str, Any]) -> str:
    try:
        return _as_line(event)
    except (KeyError, TypeError, ValueError):  # not ours after all
        return json.dumps(event, ensure_ascii=False)


def _as_line(event: Mapping[str, Any]) -> str:
    kind, alert = event.get("type"), f"{event.get('pipeline')} {event.get('alert')}"
    match kind:
        case "DeadlineMissed":
            return f"{event['detected_at']} missed {alert}: {_of(event)}, due {event['due_at']}, {event['run_state']}"
        case "DeadlineRecovered":
            return f"{event['recovered_at']} done {alert}: {_of(event)}, {event['late_seconds']:.1f} s late"
        case "DeadlinesMissed":
            return f"{event['closed_at']} missed {alert}: {event['count']:,} since {event['opened_at']}"
        case _:
            return f"{kind} {alert}"


def _of(event: Mapping[str, Any]) -> str:
    if event.get("scope") == "backfill":
        return f"backfill {event['backfill_id']}"
    task = f"{event['task']} of " if event.get("task") else ""
    return f"{task}run {event.get('run_id')} of {event.get('interval_start')}"
