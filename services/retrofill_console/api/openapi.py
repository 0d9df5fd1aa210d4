"""The API as an OpenAPI document, made from the table of endpoints."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from retrofill_console.answers import JSON
from retrofill_console.api.inputs import Entry, Nothing
from retrofill_console.api.table import ASKS, LIVE, LOG, READS, Ask, Read

REFERENCE = "#/components/schemas/{model}"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "One line: what is wrong, and what to do"}},
}
LOG_IN = (
    Ask("/api/login", "Log in with the token; a cookie keeps it for a week", lambda: None, Entry),
    Ask("/api/logout", "Log out", lambda: None, Nothing),
)
ME = Read("/api/me", "Who is logged in, how one logs in, and the version", lambda: None)
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
