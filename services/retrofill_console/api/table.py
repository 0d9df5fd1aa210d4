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
from retrofill_console.api import logs, pages, requests
from retrofill_console.api.inputs import Approval, CallbackIds, Entry, NamedRuns, Nothing, Places, Resume
from retrofill_console.live import STREAM
from retrofill_core.contract.backfills import BackfillChangeRequested, BackfillRequested
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.callback import CallbackState
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.run import RunState

LIMIT = {"limit": "At most this many, 50 by default"}
OF = {"pipeline": "Only this pipeline", "backfill": "Only this backfill"}
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


@dataclass(frozen=True)
class Ask:
    """POST of a ``body``; ``of_id``: the path names what it is for."""

    path: str
    about: str
    work: Callable[..., Any]
    body: type[BaseModel]
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
        {"pipeline": OF["pipeline"], **_state(BackfillState, REPEATABLE), **LIMIT},
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


LOG = Read(
    "/api/v1/runs/{id}/log",
    "What the run printed: events lines (a list of texts), then end or problem",
    logs.log,
    {"attempt": "Id of an attempt; the last one by default", "follow": "1: until the attempt has ended"},
    media_type=STREAM,
)


LIVE = Read(
    "/api/v1/live",
    "What happens: events hello, changes, reload and kafka; Last-Event-ID: what was missed comes first",
    lambda: None,
    {"backfill": "Also each event of this backfill's runs"},
    media_type=STREAM,
)


ASKS = (
    Ask("/api/v1/preview", "What would become of a request, without making it", requests.preview, BackfillRequested),
    Ask("/api/v1/backfills", "Request a backfill", requests.create, BackfillRequested, 201),
    Ask("/api/v1/backfills/{id}/pause", "Start no new runs; runs in progress finish", requests.pause, Nothing),
    Ask("/api/v1/backfills/{id}/resume", "Start runs again", requests.resume, Resume),
    Ask("/api/v1/backfills/{id}/publish", "Publish what a backfill in review has staged", requests.publish, Approval),
    Ask("/api/v1/backfills/{id}/undo", "Restore what an ended backfill replaced", requests.undo, Nothing),
    Ask("/api/v1/backfills/{id}/discard", "Cancel a backfill in review", requests.discard, Nothing),
    Ask("/api/v1/backfills/{id}/cancel", "Cancel all runs that have not ended", requests.cancel, Nothing),
    Ask("/api/v1/backfills/{id}/change", "Change an active backfill", requests.change, BackfillChangeRequested),
    Ask(
        "/api/v1/backfills/{id}/retry",
        "Retry all failed runs; of an ended backfill, by a new one",
        requests.retry,
        Nothing,
    ),
    Ask("/api/v1/runs/cancel", "Cancel runs that have not ended", requests.cancel_runs, NamedRuns),
    Ask("/api/v1/runs/retry", "Retry failed runs of an active backfill", requests.retry_runs, NamedRuns),
    Ask("/api/v1/callbacks/replay", "Call failed callbacks again", requests.replay_callbacks, CallbackIds),
    Ask("/api/v1/dead-letters/replay", "Publish dead letters that are requests again", requests.replay_letters, Places),
)


REFERENCE = "#/components/schemas/{model}"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "One line: what is wrong, and what to do"}},
}
LOG_IN = (
    Ask("/api/v1/login", "Log in with the token; a cookie keeps it for a week", lambda: None, Entry),
    Ask("/api/v1/logout", "Log out", lambda: None, Nothing),
)
ME = Read("/api/v1/me", "Who is logged in, how one logs in, and the version", lambda: None)
MEANING: dict[int, str] = {
    400: "Wrong input",
    401: "Not logged in",
    403: "Sent by another site's page",
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
    for read in (*READS, LOG, LIVE, ME):
        paths.setdefault(read.path, {})["get"] = _read(read)
    for ask in asks:
        paths.setdefault(ask.path, {})["post"] = _ask(ask)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Retrofill console",
            "version": version("retrofill"),
            "description": "Documents are those that the commands print with --json.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": {**schemas["$defs"], "Error": ERROR}},
    }


def _read(read: Read) -> dict[str, Any]:
    query = [_parameter(name, "query", about) for name, about in read.query.items()]
    return {
        "summary": read.about,
        "parameters": [*_in_path(read.path), *query],
        "responses": {
            "200": {"description": "As described", "content": {read.media_type: {}}},
            **_errors(400, 401, 404, 503),
        },
    }


def _ask(ask: Ask) -> dict[str, Any]:
    schema = {"$ref": REFERENCE.format(model=ask.body.__name__)}
    return {
        "summary": ask.about,
        "parameters": _in_path(ask.path),
        "requestBody": {"required": True, "content": {JSON: {"schema": schema}}},
        "responses": {
            str(ask.status): {"description": "Done", "content": {JSON: {}}},
            **_errors(400, 401, 403, 404, 409, 503, 504),
        },
    }


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
