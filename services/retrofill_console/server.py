"""The server of the console, and its application: the API, the files of the pages, and who may see them."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from retrofill.errors import NotConfigured, UserError
from retrofill.log import configure, get_log
from retrofill.masking import configure_masking
from retrofill_console.answers import answer, handlers
from retrofill_console.api.routes import routes
from retrofill_console.console import Console, make_console
from retrofill_console.live import LiveReader
from retrofill_console.login import API, Guard, Login
from retrofill_core.contract.topics import CONSOLE
from retrofill_core.settings import Settings, WrongSetting, read_settings
from retrofill_core.startup import write_ready

STATIC = Path(__file__).parent / "static"
log = get_log(__name__)
# After this, open connections are cut.
STOP_SECONDS = 3


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
        raise HTTPException(404, f"the API has no {request.url.path}: /api/v1/openapi.json lists what it has")
    return FileResponse(STATIC / "index.html")


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    parser = argparse.ArgumentParser(prog="retrofill console", description="Serve the web page.")
    parser.add_argument("--port", type=int, help="default: RETROFILL_CONSOLE_PORT")
    port = parser.parse_args(arguments).port
    try:
        settings = read_settings().acting_as(CONSOLE)
        serve(settings, settings.console_port if port is None else port)
    except (WrongSetting, NotConfigured, UserError) as e:
        print(f"retrofill: {e}", file=sys.stderr)  # noqa: T201 - there is no log yet
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def serve(settings: Settings, port: int) -> None:
    """Raises ``UserError`` if the port cannot be had, or if nobody would have to log in."""
    configure(settings.log_level)
    configure_masking(settings.redact)
    # The server raises the signal that ended it once more, which by default is the process's death of it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    login, console = Login(settings), make_console(settings)
    with _listening(settings.console_host, port) as listener:
        config = uvicorn.Config(
            make_app(console, login),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        _Server(config, console, listener).run([listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as e:
        raise UserError(
            f"the console cannot listen on {host}:{port}: {os.strerror(e.errno or 0)}; the embedded stack may have one already "
            "(retrofill status): use it, or set RETROFILL_CONSOLE_PORT"
        ) from e


class _Server(uvicorn.Server):
    """Says where it is once it serves, and ends its streams when it stops: they would go on for ever."""

    def __init__(self, config: uvicorn.Config, console: Console, listener: socket.socket) -> None:
        super().__init__(config)
        self._console = console
        host, port = listener.getsockname()[:2]
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        self._ready: Path | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready = write_ready(self._console.settings.home, CONSOLE, self._url)
        print(self._url, flush=True)  # noqa: T201 - for whoever started it by hand
        log.info("started", url=self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._ready is not None:
            self._ready.unlink(missing_ok=True)
        self._console.hub.close()
        await super().shutdown(sockets)
        log.info("stopped")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A second signal must not cut what the first one lets finish.
        if not self.should_exit:
            super().handle_exit(sig, frame)
