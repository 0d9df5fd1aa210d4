"""Requests for backfills: as the command line that makes them, and again for what an ended one left undone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from retrofill.errors import UserError
from retrofill_core.contract.backfills import MAX_DATES, BackfillRequested
from retrofill_core.contract.base import Message
from retrofill_core.domain.backfill import Publish, ReprocessBehavior
from retrofill_core.domain.deadline import FINISH_BY
from retrofill_core.domain.planning import Intervals
from retrofill_core.domain.schedule import written_range
from retrofill_core.store import backfills
from retrofill_core.store.run_commands import not_done
from retrofill_core.store.sql import database_now
from retrofill_core.store.tables import deadline
from retrofill_tools.client.backfills import Backfill, is_purged

Body = TypeVar("Body", bound=Message)
# Field of a request, as JSON → option of ``retrofill backfill create``.
VALUES = {
    "from": "--from",
    "to": "--to",
    "max_active_runs": "--max-active-runs",
    "batch_size": "--batch-size",
    "reprocess_behavior": "--reprocess",
    "on_run_failure": "--on-run-failure",
    "finish_by": "--finish-by",
    "id": "--id",
}
FLAGS = {"run_backwards": "--backwards", "latest_code": "--latest-code"}


def message_of(kind: type[Body], body: Mapping[str, Any]) -> Body:
    """A JSON object of a program as a message. Raises ``ValidationError``, also for fields that it does not have."""
    return kind.model_validate({**body, "type": kind.__name__}, extra="forbid")


def request_as_json(request: BackfillRequested) -> dict[str, Any]:
    """The request as it is published, without what is as by default and who makes it."""
    left_out = {"type", "version", "triggered_by"}
    return request.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=left_out)


def command_of(request: BackfillRequested) -> str:
    """``retrofill backfill create …``, as a shell takes it."""
    given = request_as_json(request)
    words = ["retrofill", "backfill", "create", request.pipeline]
    for name, option in VALUES.items():
        words += [option, str(given[name])] if name in given else []
    if request.intervals:
        words += ["--dates", ",".join(_date(each) for each in request.intervals)]
    words += [option for name, option in FLAGS.items() if given.get(name)]
    words += ["--review"] if request.publish == Publish.REVIEW else []
    if request.conf:
        words += ["--conf", json.dumps(given["conf"], ensure_ascii=False)]
    if request.budget is not None:
        limits = request.budget.model_dump(mode="json", exclude_none=True)
        words += ["--budget", ",".join(f"{name}={limit}" for name, limit in limits.items()) or "none"]
    return shlex.join(words)


def _date(each: date) -> str:
    return each.isoformat()


def _behavior(of: Backfill) -> ReprocessBehavior:
    """What was to replace an earlier success still is: the runs that are named have no later one."""
    completed = of.reprocess_behavior == ReprocessBehavior.COMPLETED
    return ReprocessBehavior.COMPLETED if completed else ReprocessBehavior.FAILED


# Option of a request → what the ended backfill has for it, which changes and resumes have kept up to date.
COPIED: Mapping[str, Callable[[Backfill], Any]] = {
    "pipeline": attrgetter("pipeline"),
    "max_active_runs": attrgetter("max_active_runs"),
    "batch_size": attrgetter("batch_size"),
    "run_backwards": attrgetter("run_backwards"),
    "on_run_failure": attrgetter("on_run_failure"),
    "conf": attrgetter("conf"),
    "latest_code": attrgetter("code_follows"),
    "publish": lambda of: Publish.REVIEW if of.review else Publish.AT_ONCE,
    # The whole one again: it counts from the new request.
    "budget": backfills.budget_of,
    "reprocess_behavior": _behavior,
}
# Option → the column of the backfill's deadline that it became.
OF_DEADLINE = {"finish_by": "due_at", "finish_by_callback": "callback"}
# All others, and why they are not copied.
NOT_COPIED = {
    "type": "the same for all requests",
    "version": "the same for all requests",
    "in_reply_to": "no request is a reply",
    "id": "of the ended backfill only",
    "from_": "the intervals are named one by one",
    "to": "the intervals are named one by one",
    "intervals": "only those that are not done",
    "interval_ends": "of the intervals",
    "triggered_by": "who asks now",
}


@dataclass(frozen=True)
class Again:
    """``without``: moments by which the ended backfill had to be done, and that are past."""

    request: BackfillRequested
    without: Mapping[str, datetime]

    @property
    def note(self) -> str | None:
        """For people, what is not as it was."""
        past = [f"{name} {moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" for name, moment in self.without.items()]
        return f"requested again without {' and '.join(past)}, which is past" if past else None


def requested_again(conn: Connection, of: Backfill, user: str | None) -> Again:
    """A request by ``user`` for the intervals of an ended backfill whose runs failed or were cancelled.

    Those that succeeded in another backfill since are left out, as are moments that are past. Raises ``UserError`` if
    there are no intervals, or too many for a request.
    """
    left = _not_done(conn, of)
    given = {name: copied(of) for name, copied in COPIED.items()} | _finish_by(conn, of.id)
    options, without = _without_past(given, database_now(conn))
    intervals = {"intervals": tuple(left.starts), "interval_ends": tuple(left.ends)}
    return Again(BackfillRequested(**options, **intervals, triggered_by=user), without)


def _finish_by(conn: Connection, id: str) -> dict[str, Any]:
    """The options that became a deadline of the backfill."""
    of_backfill = (deadline.c.backfill_id == id) & (deadline.c.alert == FINISH_BY) & deadline.c.run_id.is_(None)
    columns = [deadline.c[column].label(name) for name, column in OF_DEADLINE.items()]
    found = conn.execute(select(*columns).where(of_backfill)).mappings().first()
    return dict(found or {})


def _without_past(given: Mapping[str, Any], now: datetime) -> tuple[dict[str, Any], dict[str, datetime]]:
    """The options without moments that are past, which would be rejected, and those moments by name."""
    options, without = dict(given), {}
    if (at := options.get("finish_by")) is not None and at <= now:
        without["finish_by"] = at
        options = {name: value for name, value in options.items() if name not in OF_DEADLINE}
    budget = options["budget"]
    if budget is not None and budget.until is not None and budget.until <= now:
        without["budget.until"] = budget.until
        left = budget.model_copy(update={"until": None})
        options["budget"] = left if left != type(budget)() else None
    return options, without


def _not_done(conn: Connection, of: Backfill) -> Intervals:
    """The intervals. Raises ``UserError`` as ``requested_again`` does."""
    id = of.id
    if of.undoes is not None:
        raise UserError(
            f"backfill {id} is an undo: request it again with 'retrofill backfill undo {of.undoes}', which skips "
            "what is undone"
        )
    left = not_done(conn, id)
    dates = left.starts
    if not dates and is_purged(conn, of):
        raise UserError(f"backfill {id} was purged: request its range again with 'retrofill backfill create'")
    if not dates:
        raise UserError(
            f"nothing to retry: backfill {id} {of.state}, and the intervals of all its runs have succeeded, in it or "
            "in another backfill since"
        )
    if len(dates) > MAX_DATES:
        raise UserError(
            f"backfill {id} has more than {MAX_DATES:,} failed or canceled runs, too many for one request: request "
            f"parts of its range, {written_range(of.range_start, of.range_end, of.definition.timezone)}, with "
            "'retrofill backfill create --reprocess failed'"
        )
    return left
