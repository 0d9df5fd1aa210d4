"""The endpoints of the API as a table, and its description in OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from retrofill_console.answers import JSON
from retrofill_console.api import logs, pages, requests, reviews
from retrofill_console.api.inputs import Approval, CallbackIds, Entry, NamedRuns, Nothing, Places, Resume, Undo
from retrofill_console.live import STREAM
from retrofill_core.contract.backfills import BackfillChangeRequested, BackfillRequested
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.callback import CallbackState
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.run import RunState
from retrofill_core.setting_types import Role

LIMIT = {"limit": "At most this many, 50 by default"}
OF = {"pipeline": "Only this pipeline", "backfill": "Only this backfill"}
SEARCH = {
    "text": "Only with this in the id or the pipeline's name",
    "requester": "Only with this in triggered_by",
    "since": "Only requested at this moment or later; a date means its midnight in UTC",
    "until": "Only requested before this moment; a date means the end of that day in UTC",
    "day": "Only with an interval of this day, in the pipeline's time zone",
}
REPEATABLE = "; repeatable"


@dataclass(frozen=True)
class Read:
    """GET. ``shared``: its answers are given to all viewers (``retrofill_console.console.Shared``)."""

    path: str
    about: str
    work: Callable[..., Any]
    query: Mapping[str, str] = field(default_factory=dict)
    shared: bool = True
    media_type: str = JSON
    role: Role | None = Role.READ


@dataclass(frozen=True)
class Ask:
    """POST of a ``body`` by who has the ``role``, or by anybody; ``of_id``: the path names what it is for."""

    path: str
    about: str
    work: Callable[..., Any]
    body: type[BaseModel]
    role: Role | None
    status: int = 200

    @property
    def of_id(self) -> bool:
        return "{id}" in self.path


def _state(known: Iterable[str], more: str = "") -> dict[str, str]:
    return {"state": f"Only in this state{more}: {', '.join(known)}"}


READS = (
    Read(
        "/api/v1/backfills",
        "Backfills, newest first, with progress and estimate (backfill list --json)",
        pages.backfills,
        {"pipeline": OF["pipeline"], **_state(BackfillState, REPEATABLE), **SEARCH, **LIMIT},
    ),
    Read(
        "/api/v1/backfills/{id}",
        "One backfill (backfill show --json)",
        pages.backfill,
        {"failures": "At most this many failed runs with their errors, 10 by default"},
    ),
    Read("/api/v1/backfills/{id}/grid", "Its intervals as columns of equal length", pages.grid),
    Read(
        "/api/v1/runs",
        "The runs of a backfill (runs list --json)",
        pages.runs,
        {"backfill": "The backfill", **_state(RunState, REPEATABLE), **LIMIT},
    ),
    Read("/api/v1/runs/{id}", "One run: attempts, tasks, error, deadlines, callbacks (runs show --json)", pages.run),
    Read("/api/v1/pipelines", "Applied pipelines (pipelines list --json)", pages.pipelines),
    Read("/api/v1/pipelines/{name}", "One pipeline's definition (pipelines show --json)", pages.pipeline),
    Read(
        "/api/v1/pipelines/{name}/coverage",
        "The present state of each of its intervals over all backfills, with run and code, as columns",
        pages.coverage,
    ),
    Read(
        "/api/v1/deadlines",
        "Deadlines, latest first (deadlines list --json)",
        pages.deadlines,
        {**_state(DeadlineState), **OF, **LIMIT},
    ),
    Read(
        "/api/v1/callbacks",
        "Callbacks, newest first (callbacks list --json)",
        pages.callbacks,
        {**_state(CallbackState), **OF, **LIMIT},
    ),
    Read(
        "/api/v1/dead-letters",
        "Messages that no service could handle (dead-letters list --json)",
        requests.dead_letters,
        LIMIT,
    ),
    Read("/api/v1/health", "Services and their lag, hosts, pools, live attempts", pages.health),
)


STREAMS = (
    Read(
        "/api/v1/runs/{id}/log",
        "What the run printed: events lines (a list of texts), then end or problem",
        logs.log,
        {"attempt": "Id of an attempt; the last one by default", "follow": "1: until the attempt has ended"},
        media_type=STREAM,
    ),
    Read(
        "/api/v1/backfills/{id}/diff",
        "What a review would change, computed now: events begin, change (of one output, as of backfill diff --json), "
        "waiting, then end or problem",
        reviews.diff,
        media_type=STREAM,
    ),
)


LIVE = Read(
    "/api/v1/live",
    "What happens: events hello, changes, reload and kafka; Last-Event-ID: what was missed comes first",
    lambda: None,
    {"backfill": "Also each event of this backfill's runs"},
    media_type=STREAM,
)


ASKS = (
    Ask(
        "/api/v1/preview",
        "What would become of a request, without making it",
        requests.preview,
        BackfillRequested,
        Role.READ,
    ),
    Ask("/api/v1/backfills", "Request a backfill", requests.create, BackfillRequested, Role.REQUEST, 201),
    Ask(
        "/api/v1/backfills/{id}/pause",
        "Start no new runs; runs in progress finish",
        requests.pause,
        Nothing,
        Role.REQUEST,
    ),
    Ask("/api/v1/backfills/{id}/resume", "Start runs again", requests.resume, Resume, Role.REQUEST),
    Ask(
        "/api/v1/backfills/{id}/publish",
        "Publish what a backfill in review has staged",
        requests.publish,
        Approval,
        Role.PUBLISH,
    ),
    Ask("/api/v1/backfills/{id}/undo", "Restore what an ended backfill replaced", requests.undo, Undo, Role.PUBLISH),
    Ask("/api/v1/backfills/{id}/discard", "Cancel a backfill in review", requests.discard, Nothing, Role.PUBLISH),
    Ask("/api/v1/backfills/{id}/cancel", "Cancel all runs that have not ended", requests.cancel, Nothing, Role.REQUEST),
    Ask(
        "/api/v1/backfills/{id}/change",
        "Change an active backfill",
        requests.change,
        BackfillChangeRequested,
        Role.REQUEST,
    ),
    Ask(
        "/api/v1/backfills/{id}/retry",
        "Retry all failed runs; of an ended backfill, by a new one",
        requests.retry,
        Nothing,
        Role.REQUEST,
    ),
    Ask("/api/v1/runs/cancel", "Cancel runs that have not ended", requests.cancel_runs, NamedRuns, Role.REQUEST),
    Ask("/api/v1/runs/retry", "Retry failed runs of an active backfill", requests.retry_runs, NamedRuns, Role.REQUEST),
    Ask(
        "/api/v1/callbacks/replay", "Call failed callbacks again", requests.replay_callbacks, CallbackIds, Role.OPERATE
    ),
    Ask(
        "/api/v1/dead-letters/replay",
        "Publish dead letters that are requests again",
        requests.replay_letters,
        Places,
        Role.OPERATE,
    ),
)


# Of bodies that have more than a few fields.
EXAMPLES: dict[type[BaseModel], dict[str, Any]] = {
    BackfillRequested: {
        "a month": {
            "summary": "Each day of January, four at a time",
            "value": {"pipeline": "flights", "from": "2013-01-01", "to": "2013-01-31", "max_active_runs": 4},
        },
        "reviewed": {
            "summary": "Again what has succeeded, published only after a review; the id makes a repetition harmless",
            "value": {
                "id": "flights-carriers-2013-q1",
                "pipeline": "flights",
                "from": "2013-01-01",
                "to": "2013-03-31",
                "reprocess_behavior": "completed",
                "publish": "review",
                "conf": {"carriers": ["UA", "DL"]},
            },
        },
        "some hours": {
            "summary": "Single intervals by their starts, the latest first; paused by the first failure",
            "value": {
                "pipeline": "events_hourly",
                "intervals": ["2024-03-10T05:00:00Z", "2024-03-10T06:00:00Z"],
                "run_backwards": True,
                "on_run_failure": "pause",
            },
        },
        "limited": {
            "summary": "Paused when it has used 20 core hours or has 5 failed runs, and alerted if it is late",
            "value": {
                "pipeline": "flights",
                "from": "2012-01-01",
                "to": "2012-12-31",
                "budget": {"core_hours": 20, "failed_runs": 5},
                "finish_by": "2030-01-01T06:00:00Z",
            },
        },
    },
    BackfillChangeRequested: {"slower": {"value": {"max_active_runs": 1}}},
    NamedRuns: {
        "by ids": {"value": {"backfill_id": "flights-2013", "ids": [17, 18]}},
        "by dates": {"value": {"backfill_id": "flights-2013", "from": "2013-01-05", "to": "2013-01-07"}},
    },
}
REFERENCE = "#/components/schemas/{model}"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "One line: what is wrong, and what to do"}},
}
LOG_IN = (
    Ask("/api/v1/login", "Log in with a token; a cookie keeps it for a week", lambda: None, Entry, role=None),
    Ask("/api/v1/logout", "Log out", lambda: None, Nothing, role=None),
)
ME = Read("/api/v1/me", "Who is logged in with which role, how one logs in, and the version", lambda: None, role=None)
MEANING: dict[int, str] = {
    400: "Wrong input",
    401: "Not logged in, or the token is unknown",
    403: "The role does not allow it, or another site's page sent it",
    404: "It does not exist",
    409: "Refused; answer has the reply",
    503: "Postgres or Kafka cannot be reached",
    504: "No answer in time; the request counts once a service reads it",
}


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    asks = (*ASKS, *LOG_IN)
    models = {each.body.__name__: each.body for each in asks}
    _, schemas = models_json_schema(
        [(model, "validation") for model in models.values()], by_alias=True, ref_template=REFERENCE
    )
    paths: dict[str, dict[str, Any]] = {}
    for read in (*READS, *STREAMS, LIVE, ME):
        paths.setdefault(read.path, {})["get"] = _read(read)
    for ask in asks:
        paths.setdefault(ask.path, {})["post"] = _ask(ask)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Retrofill console",
            "version": version("retrofill"),
            "description": "Documents are those that the commands print with --json. Roles: read, request, publish and operate; "
            "each may also do what those before it may.",
        },
        "security": [{"token": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**schemas["$defs"], "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _read(read: Read) -> dict[str, Any]:
    query = [_parameter(name, "query", about) for name, about in read.query.items()]
    return {
        "summary": read.about,
        **_role(read.role),
        "parameters": [*_in_path(read.path), *query],
        "responses": {
            "200": {"description": "As described", "content": {read.media_type: {}}},
            **_errors(400, 401, 404, 503),
        },
    }


def _ask(ask: Ask) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=ask.body.__name__)}
    examples = {"examples": EXAMPLES[ask.body]} if ask.body in EXAMPLES else {}
    return {
        "summary": ask.about,
        **_role(ask.role),
        "parameters": _in_path(ask.path),
        "requestBody": {"required": True, "content": {JSON: {"schema": schema, **examples}}},
        "responses": {
            str(ask.status): {"description": "Done", "content": {JSON: {}}},
            **_errors(400, 401, 403, 404, 409, 503, 504),
        },
    }


def _role(role: Role | None) -> dict[str, Any]:
    """What a token needs; nothing: no login is needed."""
    return {"security": []} if role is None else {"x-role": str(role)}


def _in_path(path: str) -> list[dict[str, Any]]:
    return [_parameter(name, "path", f"The {name}") for name in re.findall(r"{(\w+)}", path)]


def _parameter(name: str, place: str, about: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": about,
        "schema": {"type": "string"},
    }


def _errors(*statuses: int) -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": REFERENCE.format(model="Error")}}}
    return {str(status): {"description": MEANING[status], "content": content} for status in statuses}
