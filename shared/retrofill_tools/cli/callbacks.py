"""``retrofill callbacks``: list, show and replay callbacks."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from retrofill.errors import UserError, WrongUsage
from retrofill_core.contract.base import MAX_INT, Message
from retrofill_core.contract.deadlines import CallbackReplayed, CallbackReplayRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.callback import CallbackState, shown
from retrofill_core.settings import Settings
from retrofill_tools.cli.options import ANSWER_SECONDS, AsJson, Form, Limit, PipelineFilter, TimeLimit, takes_form
from retrofill_tools.cli.output import Column, instant, print_facts, print_json, print_list, print_one, print_text
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.deadlines import Callback, FullCallback, failed_callbacks, find_callback, find_callbacks
from retrofill_tools.client.kafka import ask

group = typer.Typer(name="callbacks", help="List, show and replay callbacks.", no_args_is_help=True)


@group.command("list")
@takes_form
def list_(
    state: Annotated[CallbackState | None, typer.Option(help="Only callbacks in this state.")] = None,
    pipeline: PipelineFilter = None,
    backfill: Annotated[str | None, typer.Option(metavar="ID", help="Only this backfill.")] = None,
    limit: Limit = 50,
    *,
    form: Form,
) -> None:
    """List callbacks, newest first."""
    with reading(load_settings()) as conn:
        found = find_callbacks(conn, {"state": state, "pipeline": pipeline, "backfill_id": backfill}, limit)
    columns = [
        Column("id", lambda each: str(each.deadline_id), keep=True),
        Column("callback", lambda each: each.name),
        Column("pipeline", lambda each: each.pipeline),
        Column("called on", _called_on),
        Column("state", lambda each: each.state, keep=True),
        Column("calls", lambda each: each.attempts, keep=True),
        Column("backfill", lambda each: each.backfill_id, wide=True),
        Column("last error", lambda each: " ".join((each.last_error or "").split())[:200]),
    ]
    print_list(form, found, columns, name=lambda each: each.deadline_id, empty="no callbacks")
    if form not in (Form.TABLE, Form.WIDE):
        return
    for since, name in sorted({(row.receiver_down_since, row.name) for row in found if row.receiver_down_since}):
        print_text(f"{name} has been down since {instant(since)} UTC: its callbacks wait until it is back")


@group.command()
@takes_form
def show(
    id: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=MAX_INT, help="The callback's id, which is its deadline's.")
    ],
    *,
    form: Form,
) -> None:
    """Show one callback: its target, arguments and outcome."""
    with reading(load_settings()) as conn:
        found = find_callback(conn, id)
    if found is None:
        raise UserError(f"there is no callback {id}: see 'retrofill callbacks list'")
    callback, collects = found
    print_one(form, callback, callback.deadline_id, lambda: _print_callback(callback, collects))


def _print_callback(row: FullCallback, collects: bool) -> None:
    waits = row.state == CallbackState.PENDING
    print_facts(
        {
            "callback": str(row.deadline_id),
            "called on": _called_on(row),
            row.kind: row.name,
            "pipeline": row.pipeline,
            "backfill": row.backfill_id,
            "run": None if row.run_id is None else str(row.run_id),
            "state": row.state,
            "calls": row.attempts,
            "runners lost": row.runners_lost or None,
            "next call (UTC)": row.next_try_at if waits and row.receiver_down_since is None else None,
            "waits for its receiver, down since (UTC)": row.receiver_down_since,
            "ended (UTC)": row.finished_at,
            "at most once": "yes" if row.options.get("at_most_once") else None,
            "secret": row.options.get("secret"),
            "body": row.options.get("body"),
            "collects failures": "until the next call" if collects else None,
            "switched off since (UTC)": row.switched_off_at,
            "last error": row.last_error,
            "kwargs": _as_text(row.kwargs),
            "event": _as_text(row.event),
        }
    )


def _called_on(row: Callback) -> str:
    return f"on_{row.occasion}" if row.occasion else f"deadline {row.alert}"


def _as_text(value: Any) -> str | None:
    return json.dumps(value, indent=2, ensure_ascii=False) if value else None


@group.command()
def replay(
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="ID...", min=1, max=MAX_INT, help="Ids of callbacks.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Replay all failed callbacks.")] = False,
    pipeline: PipelineFilter = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replay even if the receiver got a newer callback about the same backfill.")
    ] = False,
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Call failed callbacks again, starting at their first try.

    A callback that succeeded is never repeated.
    """
    if failed == bool(ids):
        raise WrongUsage("give the ids of callbacks, or --failed for all failed callbacks")
    if pipeline is not None and not failed:
        raise WrongUsage("--pipeline requires --failed")
    settings = load_settings()
    chosen = ids or _failed(settings, pipeline)
    answers = [_replay(settings, id, force, timeout, as_json) for id in chosen]
    if as_json:
        print_json([answer.model_dump(mode="json", exclude_none=True) for answer in answers])
    elif not answers:
        print_text("no callback has failed")
    refused = [str(getattr(answer, "message", answer.type)) for answer in answers if not _is_replayed(answer)]
    if refused:
        more = f" (and {len(refused) - 1:,} more)" if len(refused) > 1 else ""
        raise UserError(refused[0] + more)


def _failed(settings: Settings, pipeline: str | None) -> list[int]:
    with reading(settings) as conn:
        return failed_callbacks(conn, pipeline)


def _replay(settings: Settings, id: int, force: bool, seconds: float, silent: bool) -> Message:
    """Replay one, and print the result immediately: many more may follow."""
    request = CallbackReplayRequested(deadline_id=id, force=force)
    answer = ask(settings, Topic.CALLBACK_REQUESTS, str(id), request, seconds)
    if isinstance(answer, CallbackReplayed) and not silent:
        print_text(f"callback {id}: {shown(answer.kind, answer.callback)} is called again")
    return answer


def _is_replayed(answer: Message) -> bool:
    return isinstance(answer, CallbackReplayed)
