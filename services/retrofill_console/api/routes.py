"""The routes of the API, made from the table of endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from retrofill.errors import WrongUsage
from retrofill.log import get_log
from retrofill_console.answers import JSON, answer, failed
from retrofill_console.api.inputs import Entry, Nothing
from retrofill_console.api.table import ASKS, LIVE, READS, STREAMS, Ask, Read, document
from retrofill_console.console import Console
from retrofill_console.live import STREAM
from retrofill_console.login import COOKIE, KEEP_SECONDS, UNKNOWN, Login, needs
from retrofill_core.contract.base import Message, Undecodable, decode_object
from retrofill_tools.client.documents import encoded
from retrofill_tools.client.requests import message_of

log = get_log(__name__)
Endpoint = Callable[[Request], Awaitable[Response]]
# A request with ten thousand dates takes a third of it.
MAX_BODY = 1_000_000
# Smaller answers are not worth it.
COMPRESSED = [Middleware(GZipMiddleware, minimum_size=2000, compresslevel=1)]


def routes(console: Console, login: Login) -> list[Route]:
    """Every path below ``/api/v1/``."""
    return [
        *(Route(each.path, _read(console, each), methods=["GET"], middleware=COMPRESSED) for each in READS),
        *(Route(each.path, _ask(console, each), methods=["POST"]) for each in ASKS),
        *(Route(each.path, _stream(console, each), methods=["GET"]) for each in STREAMS),
        Route(LIVE.path, _live(console), methods=["GET"]),
        Route("/api/v1/me", _me(console, login), methods=["GET"]),
        Route("/api/v1/login", _log_in(login), methods=["POST"]),
        Route("/api/v1/logout", _log_out, methods=["POST"]),
        Route("/api/v1/openapi.json", _described, methods=["GET"]),
    ]


def _read(console: Console, of: Read) -> Endpoint:
    async def read(request: Request) -> Response:
        def work() -> bytes:
            return encoded(of.work(console, request))

        if not of.shared:
            return Response(await run_in_threadpool(work), media_type=JSON)
        return Response(await console.shared.get(_key(request), work), media_type=JSON)

    return read


def _key(request: Request) -> str:
    return f"{request.url.path}?{request.url.query}"


def _ask(console: Console, of: Ask) -> Endpoint:
    async def ask(request: Request) -> Response:
        viewer = request.state.viewer
        assert of.role is not None  # who logs in or out has none yet
        needs(viewer, of.role, request.url.path)
        body = _checked(of.body, await _body(request))
        named = (request.path_params["id"],) if of.of_id else ()
        try:
            done = await run_in_threadpool(of.work, console, *named, body, viewer)
        finally:
            # Without an answer in time, it may be done too.
            console.shared.forget()
        log.info("done", path=request.url.path, user=viewer.name)
        return answer(done, of.status)

    return ask


def _checked(model: type[BaseModel], body: dict[str, Any]) -> BaseModel:
    """The body as its model. Raises ``ValidationError``."""
    if issubclass(model, Message):
        return message_of(model, body)
    return model.model_validate(body)


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object that was sent. Raises ``WrongUsage``."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MAX_BODY:
            raise HTTPException(413, f"the body is larger than {MAX_BODY:,} bytes")
    try:
        return decode_object(bytes(found) or b"{}")
    except Undecodable as e:
        raise WrongUsage(str(e)) from e


def _stream(console: Console, of: Read) -> Endpoint:
    async def stream(request: Request) -> Response:
        found: Response = await of.work(console, request)
        return found

    return stream


def _live(console: Console) -> Endpoint:
    async def live(request: Request) -> Response:
        stream = console.hub.stream(request.headers.get("last-event-id"), request.query_params.get("backfill"))
        return StreamingResponse(stream, media_type=STREAM)

    return live


def _me(console: Console, login: Login) -> Endpoint:
    async def me(request: Request) -> Response:
        viewer = request.state.viewer
        return answer(
            {
                "user": None if viewer is None else viewer.name,
                "role": None if viewer is None else viewer.role,
                "logged_in": viewer is not None,
                "login": login.kind,
                "version": version("retrofill"),
                "topic_prefix": console.settings.topic_prefix,
            }
        )

    return me


def _log_in(login: Login) -> Endpoint:
    async def log_in(request: Request) -> Response:
        entry = Entry.model_validate(await _body(request))
        viewer = login.holder(entry.token)
        if viewer is None:
            return failed(UNKNOWN, 401, login=login.kind)
        done = answer({"user": viewer.name, "role": viewer.role})
        # The token itself: whoever can read the file of tokens must not be able to make a cookie.
        secure = request.url.scheme == "https"
        done.set_cookie(COOKIE, entry.token, KEEP_SECONDS, httponly=True, samesite="strict", secure=secure)
        return done

    return log_in


async def _log_out(request: Request) -> Response:
    Nothing.model_validate(await _body(request))
    done = answer({})
    done.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return done


async def _described(_: Request) -> Response:
    return answer(document())
