"""Requests from pages: backfills, and changes of them and of their runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from retrofill.errors import UserError, WrongUsage
from retrofill_console.answers import Refused
from retrofill_console.api.bodies import Approval, CallbackIds, NamedRuns, Resume
from retrofill_console.asking import ANSWER_SECONDS, answered, command
from retrofill_console.console import Console
from retrofill_core.contract.backfills import (
    MAX_NAMED,
    BackfillCancelRequested,
    BackfillChangeRequested,
    BackfillDiscardRequested,
    BackfillPauseRequested,
    BackfillPublishRequested,
    BackfillRequested,
    BackfillResumeRequested,
    BackfillUndoRequested,
    RunCancelRequested,
    RunRetryRequested,
)
from retrofill_core.contract.base import Message
from retrofill_core.contract.deadlines import CallbackReplayRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.run import RunState
from retrofill_core.domain.schedule import range_bound
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.grid import grid_of_plan
from retrofill_tools.client.kafka import ask
from retrofill_tools.client.previews import Preview, look_ahead
from retrofill_tools.client.requests import command_of, request_as_json, requested_again
from retrofill_tools.client.runs import NamedRun, present_runs

# Runs that are cancelled or retried at a time: ten commands.
MOST_RUNS = 1000
# The output of the others is accepted, or they have ended.
CANCELLABLE = (RunState.QUEUED, RunState.STARTING, RunState.RUNNING)
Document = dict[str, Any]


def preview(console: Console, request: BackfillRequested, _: str | None) -> Document:
    """What would become of the request, and the same as a command and as JSON."""
    with console.reading() as conn:
        found = look_ahead(conn, console.settings, request)
    drawn = {"grid": grid_of_plan(found)} if isinstance(found, Preview) else {}
    return {**found.as_json(each=False), **drawn, "command": command_of(request), "request": request_as_json(request)}


def create(console: Console, request: BackfillRequested, user: str | None) -> Document:
    key = request.id or str(uuid.uuid4())
    return command(console, key, request.model_copy(update={"triggered_by": user}))


def pause(console: Console, id: str, _body: object, _user: str | None) -> Document:
    return command(console, id, BackfillPauseRequested())


def resume(console: Console, id: str, body: Resume, _user: str | None) -> Document:
    return command(console, id, BackfillResumeRequested(budget=body.budget))


def publish(console: Console, id: str, body: Approval, _user: str | None) -> Document:
    return command(console, id, BackfillPublishRequested(force=body.force, review=body.review))


def discard(console: Console, id: str, _body: object, _user: str | None) -> Document:
    return command(console, id, BackfillDiscardRequested())


def cancel(console: Console, id: str, _body: object, _user: str | None) -> Document:
    return command(console, id, BackfillCancelRequested())


def change(console: Console, id: str, body: BackfillChangeRequested, _user: str | None) -> Document:
    if body == BackfillChangeRequested():
        raise WrongUsage("give what to change: max_active_runs, batch_size or on_run_failure")
    return command(console, id, body)


def retry(console: Console, id: str, _body: object, user: str | None) -> Document:
    """All failed runs; of an ended backfill, by a new one."""
    with console.reading() as conn:
        found = find_backfill(conn, id)
        again = None if found.ended_at is None else requested_again(conn, found, user)
    if again is None:
        return command(console, id, RunRetryRequested(all_failed=True))
    return {**command(console, str(uuid.uuid4()), again.request), "note": again.note}


def undo(console: Console, id: str, _body: object, user: str | None) -> Document:
    """By a new backfill."""
    return command(console, str(uuid.uuid4()), BackfillUndoRequested(undoes=id, triggered_by=user))


def cancel_runs(console: Console, body: NamedRuns, _user: str | None) -> Document:
    """Those whose output is not accepted, and that are not being cancelled already."""
    return _for_each(
        console,
        body,
        CANCELLABLE,
        lambda runs: RunCancelRequested(run_ids=tuple(each.id for each in runs)),
        to_cancel=True,
    )


def retry_runs(console: Console, body: NamedRuns, _user: str | None) -> Document:
    """Those that failed, of an active backfill."""
    return _for_each(
        console,
        body,
        (RunState.FAILED,),
        lambda runs: RunRetryRequested(intervals=tuple(each.interval_start for each in runs)),
    )


def _for_each(
    console: Console,
    body: NamedRuns,
    states: Sequence[str],
    make: Callable[[Sequence[NamedRun]], Message],
    *,
    to_cancel: bool = False,
) -> Document:
    """Ask for what ``make`` makes of the runs, as many commands as it takes; ``runs``: how many were accepted.

    Raises ``UserError``, and says how many if some were.
    """
    found = _present(console, body, states, to_cancel=to_cancel)
    if not found:
        already = " and not already being cancelled" if to_cancel else ""
        raise UserError(
            f"none of these runs of backfill {body.backfill_id} is {' or '.join(states)}{already}: nothing to do"
        )
    if len(found) > MOST_RUNS:
        raise WrongUsage(f"more than {MOST_RUNS:,} runs: choose fewer at a time, or the whole backfill")
    accepted = 0
    while found:
        some = found[:MAX_NAMED]
        try:
            command(console, body.backfill_id, make(some))
        except Refused as e:
            # All or none of a command: one of its runs may have ended since it was read. What was accepted is gone.
            before, found = found, _present(console, body, states, to_cancel=to_cancel)
            if found == before or not (found or accepted):
                raise _after(accepted, e) from e
        except UserError as e:
            raise _after(accepted, e) from e
        else:
            accepted, found = accepted + len(some), found[MAX_NAMED:]
    return {"backfill_id": body.backfill_id, "runs": accepted}


def _after(accepted: int, error: UserError) -> UserError:
    return UserError(f"{accepted:,} runs were accepted, and then: {error}") if accepted else error


def _present(console: Console, body: NamedRuns, states: Sequence[str], *, to_cancel: bool) -> Sequence[NamedRun]:
    """The runs that are meant and in these states now."""
    with console.reading() as conn:
        of = find_backfill(conn, body.backfill_id)
        chosen = list(body.ids) or _range(body, of.definition.timezone)
        return present_runs(conn, body.backfill_id, states, chosen, MOST_RUNS + 1, to_cancel=to_cancel)


def _range(body: NamedRuns, zone: str) -> tuple[datetime, datetime]:
    assert body.from_ is not None
    assert body.to is not None
    try:
        return range_bound(body.from_, zone, end=False), range_bound(body.to, zone, end=True)
    except ValueError as e:
        raise WrongUsage(str(e)) from e


def replay_callbacks(console: Console, body: CallbackIds, _user: str | None) -> Document:
    """Replay each; one that is refused does not keep the others from it."""
    return {"results": [{"id": id, "error": _replay(console, id)} for id in body.ids]}


def _replay(console: Console, id: int) -> str | None:
    request = CallbackReplayRequested(deadline_id=id)
    try:
        answered(ask(console.settings, Topic.CALLBACK_REQUESTS, str(id), request, ANSWER_SECONDS))
    except UserError as e:
        return str(e)
    return None
