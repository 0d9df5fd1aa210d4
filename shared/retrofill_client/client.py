"""``Client``: backfills, their runs and pipelines, by HTTP or by Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, Unpack

from retrofill_client.documents import Backfill, Change, Pipeline, Plan, Run, each_of
from retrofill_client.errors import BackfillFailed, BadRequest, NoAnswer, Refused, Unreachable, WaitTimeout
from retrofill_client.http import Http

# A logical date. A date, or a text like 2013-01-31, means that whole day in the pipeline's time zone.
Day = str | date | datetime
# Named, because a method is called list.
BackfillList: TypeAlias = list[Backfill]
ChangeList: TypeAlias = list[Change]
RunList: TypeAlias = list[Run]
PipelineList: TypeAlias = list[Pipeline]
# How often a request is sent under one id, if no answer comes.
ATTEMPTS = 3
AGAIN_SECONDS = 1.0
# Between two looks at a backfill that is waited for, at first and at last.
SOON_SECONDS, POLL_SECONDS = 0.2, 2.0
# So long, whoever waits is patient with a console or servers that are away.
PATIENCE_SECONDS = 300.0


class Transport(Protocol):
    """How requests and documents travel. Raises ``RetrofillError``."""

    def get(self, path: Sequence[str], query: Mapping[str, Any] | None = None) -> Any: ...
    def post(self, path: Sequence[str], body: Mapping[str, Any]) -> Any: ...
    def changes(self, id: str) -> Iterator[Mapping[str, Any]]: ...


class Options(TypedDict, total=False):
    """What a request for a backfill may say beside pipeline and range.

    ``intervals``: logical dates instead of ``start`` and ``end``. ``conf``: passed to the tasks. ``reprocess``: which
    intervals with a finished run to run again. ``review``: publish only after ``publish``. ``budget``: limits at which it
    pauses, ``{"failed_runs": 5, "core_hours": 20, "until": "2030-01-01T06:00:00Z"}``. ``finish_by``: a deadline.
    """

    intervals: Sequence[Day]
    conf: Mapping[str, Any]
    max_active_runs: int
    batch_size: int
    reprocess: Literal["none", "failed", "completed"]
    backwards: bool
    on_run_failure: Literal["continue", "pause", "cancel"]
    latest_code: bool
    review: bool
    budget: Mapping[str, Any]
    finish_by: datetime | str
    finish_by_callback: str


# Of those that a request names differently.
NAMES = {"reprocess": "reprocess_behavior", "backwards": "run_backwards"}


class Client:
    """Backfills by the console at ``url`` (with a ``token``, unless it is on loopback), or else by Kafka and Postgres, with
    the settings of the installation (``RETROFILL_*``).

    Thread-safe. Raises ``BadRequest`` for a wrong address or setting.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        transport: Transport
        if url is None:
            if token is not None:
                raise BadRequest("a token without url: name the console's address")
            # Without it, the standard library is enough.
            from retrofill_client.direct import Direct

            transport = Direct()
        else:
            transport = Http(url, token)
        self.backfills = Backfills(transport)
        self.runs = Runs(transport)
        self.pipelines = Pipelines(transport)


class Backfills:
    """``client.backfills``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        pipeline: str,
        start: Day | None = None,
        end: Day | None = None,
        *,
        id: str | None = None,
        **options: Unpack[Options],
    ) -> Backfill:
        """Request a backfill of the logical dates from ``start`` to ``end``, inclusive, and wait until it is planned.

        ``id``: its id. Repeating a request under its id creates nothing new, so that a program that may be restarted gives
        one. Raises ``Refused``, with a ``reason``, and what all methods raise.
        """
        body = {"id": id or str(uuid.uuid4()), **_request(pipeline, start, end, options)}
        self._again(body["id"], lambda: self._transport.post(("backfills",), body))
        return self.get(body["id"])

    def dry_run(
        self, pipeline: str, start: Day | None = None, end: Day | None = None, **options: Unpack[Options]
    ) -> Plan:
        """What ``create`` would do now. Requests nothing. Raises ``Refused`` as it would."""
        found = self._transport.post(("preview",), _request(pipeline, start, end, options))
        if not found["accepted"]:
            raise Refused(found["message"], found["reason"])
        return Plan.of(found)

    def get(self, id: str) -> Backfill:
        return Backfill.of(self._transport.get(("backfills", id)), self)

    def list(self, pipeline: str | None = None, *, states: Sequence[str] = (), limit: int = 50) -> BackfillList:
        """Backfills, newest first."""
        found = self._transport.get(("backfills",), {"pipeline": pipeline, "state": list(states), "limit": limit})
        return each_of(partial(Backfill.of, backfills=self), found)

    def wait(
        self, id: str, timeout: float | None = None, *, on_progress: Callable[[Backfill], object] | None = None
    ) -> Backfill:
        """Wait until the backfill has succeeded or is in review, and return it.

        Raises ``BackfillFailed`` if it ends otherwise, ``WaitTimeout`` after ``timeout`` seconds. Servers that are away
        for some minutes are waited for.
        """
        until = None if timeout is None else time.monotonic() + timeout
        pause, heard = SOON_SECONDS, time.monotonic()
        found = self.get(id)
        while True:
            if on_progress is not None:
                on_progress(found)
            if found.settled:
                return checked(found)
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                raise WaitTimeout(f"backfill {id} is still {found.state} after {timeout:g} s: it goes on", found)
            time.sleep(left)
            pause = min(pause * 1.5, POLL_SECONDS)
            try:
                found, heard = self.get(id), time.monotonic()
            except (Unreachable, NoAnswer):
                if time.monotonic() > heard + PATIENCE_SECONDS:
                    raise

    def pause(self, id: str) -> Backfill:
        """Start no new runs; runs in progress finish."""
        return self._command(id, "pause")

    def resume(self, id: str, *, budget: Mapping[str, Any] | None = None) -> Backfill:
        """Start runs again. ``budget`` replaces the one that is used up; ``{}``: no limits."""
        return self._command(id, "resume", {} if budget is None else {"budget": _plain(budget)})

    def cancel(self, id: str) -> Backfill:
        """Cancel all runs that have not ended."""
        return self._command(id, "cancel")

    def retry(self, id: str) -> Backfill:
        """Retry all failed runs. Of an ended backfill, request its failed and cancelled ones again: returns the new one."""
        return self._command(id, "retry")

    def diff(self, id: str) -> ChangeList:
        """What publishing a backfill in review would change, computed by Spark now: all outputs."""
        return each_of(Change.of, list(self._transport.changes(id)))

    def publish(self, id: str, *, force: bool = False) -> Backfill:
        """Publish what a backfill in review has staged; ``force``: also over what others have changed since."""
        return self._command(id, "publish", {"force": force})

    def discard(self, id: str) -> Backfill:
        """Cancel a backfill in review: its staged output is not published."""
        return self._command(id, "discard")

    def undo(self, id: str, *, review: bool = False, new_id: str | None = None) -> Backfill:
        """Restore what an ended backfill replaced, by a new backfill, which is returned."""
        body = {"id": new_id or str(uuid.uuid4()), **({"publish": "review"} if review else {})}
        return self.get(self._again(body["id"], lambda: self._transport.post(("backfills", id, "undo"), body))["id"])

    def _command(self, id: str, name: str, body: Mapping[str, Any] | None = None) -> Backfill:
        return self.get(self._transport.post(("backfills", id, name), body or {})["id"])

    def _again(self, id: str, request: Callable[[], Any]) -> Any:
        """The answer to a request under its own id, which is sent again if none comes."""
        for attempt in range(1, ATTEMPTS):
            try:
                return request()
            except (Unreachable, NoAnswer):
                time.sleep(attempt * AGAIN_SECONDS)
        try:
            return request()
        except NoAnswer as e:
            raise NoAnswer(f"{e} (its id is {id})") from e


class Runs:
    """``client.runs``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, backfill_id: str, *, states: Sequence[str] = (), limit: int = 50) -> RunList:
        """The runs of a backfill, in the order of their intervals."""
        query = {"backfill": backfill_id, "state": list(states), "limit": limit}
        return each_of(Run.of, self._transport.get(("runs",), query))

    def get(self, id: int) -> Run:
        return Run.of(self._transport.get(("runs", str(id))))


class Pipelines:
    """``client.pipelines``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> PipelineList:
        """The applied pipelines, by name."""
        return each_of(Pipeline.of, self._transport.get(("pipelines",)))

    def get(self, name: str) -> Pipeline:
        return Pipeline.of(self._transport.get(("pipelines", name)))


def checked(backfill: Backfill) -> Backfill:
    """A backfill that is settled. Raises ``BackfillFailed`` unless it has succeeded or is in review."""
    if backfill.state in ("succeeded", "in_review"):
        return backfill
    counts = ", ".join(f"{number:,} {state}" for state, number in sorted(backfill.by_state.items()) if number)
    first = f"; first: {backfill.failures[0].message}" if backfill.failures else ""
    raise BackfillFailed(f"backfill {backfill.id} of {backfill.pipeline} {backfill.state} ({counts}){first}", backfill)


def _request(pipeline: str, start: Day | None, end: Day | None, options: Options) -> dict[str, Any]:
    body: dict[str, Any] = {"pipeline": pipeline}
    given = {"from": start, "to": end, **options}
    if given.pop("review", False):
        body["publish"] = "review"
    body |= {NAMES.get(name, name): _plain(value) for name, value in given.items() if value is not None}
    return body


def _plain(value: Any) -> Any:
    """As JSON. Raises ``BadRequest`` for a moment without a time zone."""
    if isinstance(value, datetime) and value.tzinfo is None:
        raise BadRequest(f"{value.isoformat()} has no time zone: give one, or a date for a whole day of the pipeline's")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
