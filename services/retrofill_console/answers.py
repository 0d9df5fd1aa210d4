"""Answers of the API: documents, and errors as one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from confluent_kafka import KafkaException
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from retrofill.errors import NotConfigured, NotThere, UserError, WrongUsage
from retrofill.log import get_log
from retrofill_core.contract.base import Message, explain
from retrofill_core.settings import Settings
from retrofill_tools.client.connect import explain_kafka, explain_postgres
from retrofill_tools.client.documents import encoded
from retrofill_tools.client.kafka import NoAnswer

log = get_log(__name__)
JSON = "application/json"
Handler = Callable[[Request, Exception], Response]


class Forbidden(UserError):
    """The viewer's role does not allow it."""


STATUS: dict[type[UserError], int] = {
    WrongUsage: 400,
    Forbidden: 403,
    NotThere: 404,
    NoAnswer: 504,
    UserError: 409,
}


class Refused(UserError):
    """The planner refused it. ``answer`` is its reply."""

    def __init__(self, answer: Message) -> None:
        super().__init__(str(getattr(answer, "message", answer.type)))
        self.answer = answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def answer(document: Any, status: int = 200) -> Response:
    """A document as JSON."""
    return Response(encoded(document), status, media_type=JSON)


def failed(line: str, status: int, **more: Any) -> Response:
    """An error: one line, and what programs need of it."""
    return answer({"error": line, **more}, status)


def handlers(settings: Settings) -> Mapping[Any, Handler]:
    """How each kind of error is answered."""

    def of_user(_: Request, e: Exception) -> Response:
        more = {"reason": e.answer.get("reason"), "answer": e.answer} if isinstance(e, Refused) else {}
        status = next(status for kind, status in STATUS.items() if isinstance(e, kind))
        return failed(str(e), status, **more)

    def of_body(_: Request, e: Exception) -> Response:
        assert isinstance(e, ValidationError)
        return failed(explain(e), 400)

    def of_http(request: Request, e: Exception) -> Response:
        assert isinstance(e, HTTPException)
        if e.status_code == 405:
            line = f"{request.url.path} does not take {request.method}: /api/v1/openapi.json lists what it takes"
            return failed(line, 405)
        return failed(e.detail, e.status_code)

    def of_kafka(_: Request, e: Exception) -> Response:
        assert isinstance(e, KafkaException)
        return failed(explain_kafka(settings, e), 503)

    return {
        UserError: of_user,
        ValidationError: of_body,
        HTTPException: of_http,
        KafkaException: of_kafka,
        SQLAlchemyError: lambda _, e: failed(explain_postgres(e), 503),
        psycopg.Error: lambda _, e: failed(explain_postgres(e), 503),
        NotConfigured: lambda _, e: failed(str(e), 503),
        Exception: _unexpected,
    }


def _unexpected(request: Request, e: Exception) -> Response:
    log.error("unexpected", path=request.url.path, error=f"{type(e).__name__}: {e}", exc_info=e)
    return failed(f"the console failed: {type(e).__name__}; its log says more (retrofill logs console)", 500)
