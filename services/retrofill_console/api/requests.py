"""Requests of viewers: backfills, changes of them and of their runs, and replays of callbacks and dead letters."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from starlette.requests import Request

from retrofill.errors import UserError, WrongUsage
from retrofill_console.answers import Refused
from retrofill_console.api.inputs import Approval, CallbackIds, NamedRuns, Places, Resume, Undo, limit
from retrofill_console.console import Console
from retrofill_console.login import Viewer, needs
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
from retrofill_core.contract.topics import REQUESTS, Topic
from retrofill_core.domain.backfill import Publish
from retrofill_core.domain.run import CANCELLABLE, RunState
from retrofill_core.domain.schedule import range_bound
from retrofill_core.setting_types import Role
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.dead_letters import Letter, find_letter, newest, origin_of, republish
from retrofill_tools.client.grid import grid_of_plan
from retrofill_tools.client.kafka import ask, is_refusal, reading_topics
from retrofill_tools.client.previews import Preview, look_ahead
from retrofill_tools.client.requests import command_of, request_as_json, requested_again
from retrofill_tools.client.runs import NamedRun, present_runs

ANSWER_SECONDS = 30.0
# Runs that are cancelled or retried at a time: ten commands.
MOST_RUNS = 1000
Document = dict[str, Any]
# A letter may have 1.9 MB. All are read again at each new one.
VALUE_BYTES = 10_000


def command(console: Console, id: str, request: Message) -> dict[str, Any]:
    """Ask for a backfill, or for a change of one. Raises ``Refused``."""
    return {"id": id, "answer": answered(ask(console.settings, Topic.BACKFILL_REQUESTS, id, request, ANSWER_SECONDS))}


def answered(reply: Message) -> dict[str, Any]:
    """A reply as JSON. Raises ``Refused`` if it is a refusal."""
    if is_refusal(reply):
        raise Refused(reply)
    return reply.model_dump(mode="json", by_alias=True, exclude_none=True)


def preview(console: Console, request: BackfillRequested, _: Viewer) -> Document:
    """What would become of the request, and the same as a command and as JSON."""
    with console.reading() as conn:
        found = look_ahead(conn, console.settings, request)
    drawn = {"grid": grid_of_plan(found)} if isinstance(found, Preview) else {}
    return {**found.as_json(each=False), **drawn, "command": command_of(request), "request": request_as_json(request)}


def create(console: Console, request: BackfillRequested, user: Viewer) -> Document:
    _may_publish(user, request)
    key = request.id or str(uuid.uuid4())
    return command(console, key, request.model_copy(update={"triggered_by": user.name}))


def _may_publish(user: Viewer, request: BackfillRequested) -> None:
    """Otherwise whoever may only request would publish without whoever may publish. Raises ``Forbidden``."""
    if request.publish != Publish.REVIEW:
        needs(user, Role.PUBLISH, "a backfill without a review (publish: review)")


def pause(console: Console, id: str, _body: object, _user: Viewer) -> Document:
    return command(console, id, BackfillPauseRequested())


def resume(console: Console, id: str, body: Resume, _user: Viewer) -> Document:
    return command(console, id, BackfillResumeRequested(budget=body.budget))


def publish(console: Console, id: str, body: Approval, _user: Viewer) -> Document:
    return command(
        console, id, BackfillPublishRequested(force=body.force, review=body.review, intervals=body.intervals)
    )


def discard(console: Console, id: str, _body: object, _user: Viewer) -> Document:
    return command(console, id, BackfillDiscardRequested())


def cancel(console: Console, id: str, _body: object, _user: Viewer) -> Document:
    return command(console, id, BackfillCancelRequested())


def change(console: Console, id: str, body: BackfillChangeRequested, _user: Viewer) -> Document:
    if body == BackfillChangeRequested():
        raise WrongUsage("give what to change: max_active_runs, batch_size or on_run_failure")
    return command(console, id, body)


def retry(console: Console, id: str, _body: object, user: Viewer) -> Document:
    """All failed runs; of an ended backfill, by a new one."""
    with console.reading() as conn:
        found = find_backfill(conn, id)
        again = None if found.ended_at is None else requested_again(conn, found, user.name)
    if again is None:
        return command(console, id, RunRetryRequested(all_failed=True))
    _may_publish(user, again.request)
    return {**command(console, str(uuid.uuid4()), again.request), "note": again.note}


def undo(console: Console, id: str, body: Undo, user: Viewer) -> Document:
    """By a new backfill."""
    request = BackfillUndoRequested(
        undoes=id, from_=body.from_, to=body.to, publish=body.publish, triggered_by=user.name
    )
    return command(console, body.id or str(uuid.uuid4()), request)


def cancel_runs(console: Console, body: NamedRuns, _user: Viewer) -> Document:
    """Those whose output is not accepted, and that are not being cancelled already."""
    return _for_each(
        console,
        body,
        CANCELLABLE,
        lambda runs: RunCancelRequested(run_ids=tuple(each.id for each in runs)),
        to_cancel=True,
    )


def retry_runs(console: Console, body: NamedRuns, _user: Viewer) -> Document:
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

    ``left``: by state, how many others stay as they are, because they have changed since they were read.

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
    accepted, left = 0, Counter[str]()
    while found:
        some = found[:MAX_NAMED]
        try:
            answer = command(console, body.backfill_id, make(some))["answer"]
        except Refused as e:
            # All or none of a command: one of its runs may have ended since it was read. What was accepted is gone.
            before, found = found, _present(console, body, states, to_cancel=to_cancel)
            if found == before or not (found or accepted):
                raise _after(accepted, e) from e
        except UserError as e:
            raise _after(accepted, e) from e
        else:
            # A retry is of all that were named. What cannot be cancelled any more is left.
            accepted += len(answer["run_ids"]) if to_cancel else len(some)
            left.update(answer.get("left", {}))
            found = found[MAX_NAMED:]
    return {"backfill_id": body.backfill_id, "runs": accepted, "left": dict(left)}


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


def replay_callbacks(console: Console, body: CallbackIds, _user: Viewer) -> Document:
    """Replay each; one that is refused does not keep the others from it."""
    return {"results": [{"id": id, "error": _replay_callback(console, id)} for id in body.ids]}


def _replay_callback(console: Console, id: int) -> str | None:
    request = CallbackReplayRequested(deadline_id=id)
    try:
        answered(ask(console.settings, Topic.CALLBACK_REQUESTS, str(id), request, ANSWER_SECONDS))
    except UserError as e:
        return str(e)
    return None


def dead_letters(console: Console, request: Request) -> list[dict[str, Any]]:
    """Dead letters, newest first; ``replay``: why the console does not replay it.

    ``value_bytes``: the length of a value of which only the start is there.
    """
    settings = console.settings
    with reading_topics(settings) as consumer:
        found = newest(consumer, settings.topic_prefix + Topic.DEAD_LETTERS, limit(request), VALUE_BYTES)
    return [{**letter.as_json(), "replay": _why_not(letter)} for letter in found]


def replay_letters(console: Console, body: Places, _: Viewer) -> dict[str, Any]:
    """Replay each; one that fails does not keep the others from it."""
    return {"results": [{"place": place, "error": _replay_letter(console, place)} for place in body.places]}


def _why_not(letter: Letter) -> str | None:
    """The console may only publish requests; other messages are the operator's matter."""
    try:
        topic = origin_of(letter)
    except UserError as e:
        return str(e)
    return (
        None
        if topic in REQUESTS
        else f"{topic} is not a topic of requests: retrofill dead-letters replay {letter.place}"
    )


def _replay_letter(console: Console, place: str) -> str | None:
    try:
        letter = find_letter(console.settings, place)
        if (why := _why_not(letter)) is not None:
            return why
        answer = republish(console.settings, letter, origin_of(letter), ANSWER_SECONDS)
    except UserError as e:
        return str(e)
    return str(Refused(answer)) if answer is not None and is_refusal(answer) else None
