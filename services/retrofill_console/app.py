"""The application: the API, the files of the pages, and who may see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from retrofill_console.answers import answer, handlers
from retrofill_console.api.routes import routes
from retrofill_console.console import Console
from retrofill_console.guard import API, Guard
from retrofill_console.live.reader import LiveReader
from retrofill_console.login import Login

STATIC = Path(__file__).parent / "static"


def make_app(console: Console, login: Login) -> Starlette:
    """The application. It reads Kafka while it is served."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        reader = LiveReader(console.settings, console.hub, asyncio.get_running_loop())
        reader.start()
        try:
            yield
        finally:
            reader.stop()
            await asyncio.to_thread(reader.join)
            console.engine.dispose()

    return Starlette(
        routes=[
            *routes(console, login),
            Route("/healthz", _alive, methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
            # Pages have addresses of their own, and one file.
            Route("/{path:path}", _page, methods=["GET"]),
        ],
        middleware=[Middleware(Guard, login=login)],
        exception_handlers=handlers(console.settings),
        lifespan=lifespan,
    )


async def _alive(_: Request) -> Response:
    """For probes. It asks no server: without one, the pages that say so must still be there."""
    return answer({"console": "ok"})


async def _page(request: Request) -> Response:
    if request.url.path.startswith(API):
        raise HTTPException(404, f"the API has no {request.url.path}: /api/openapi.json lists what it has")
    return FileResponse(STATIC / "index.html")
