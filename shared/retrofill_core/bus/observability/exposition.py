"""A service's HTTP endpoints: ``/metrics``, ``/healthz`` and ``/readyz`` for probes, and its own pages."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app

from retrofill.log import get_log

log = get_log(__name__)
# By the name of a check: what is wrong, or None.
Checks = Callable[[], Mapping[str, str | None]]
# The rest of the path and the query → status, headers, body.
Page = Callable[[str, str], tuple[str, Mapping[str, str], bytes]]
EVERYWHERE = "0.0.0.0"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes arrive every few seconds."""


class Exposition:
    """The HTTP server of one service."""

    def __init__(self, host: str, port: int, address: str | None = None) -> None:
        """``address``: where others reach it, if that is not ``host``."""
        self._checks: dict[str, Checks] = {}
        self._pages: dict[str, Page] = {}
        self._metrics: WSGIApplication = make_wsgi_app()
        self._server = make_server(host, port, self._answer, _Server, _Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._address = address or (_own_address() if host == EVERYWHERE else host)

    @property
    def url(self) -> str:
        """Base URL, with the port that was bound."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def serve(self, prefix: str, page: Page) -> str:
        """Serve a page for all paths with a prefix, like ``/logs/``; returns its URL for others."""
        self._pages[prefix] = page
        return f"http://{self._address}:{self._server.server_address[1]}{prefix}"

    def start(self, health: Checks, ready: Checks) -> None:
        """Start serving in a daemon thread."""
        self._checks = {"/healthz": health, "/readyz": ready}
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and close the socket."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        for prefix, page in self._pages.items():
            if path.startswith(prefix):
                status, headers, body = page(path.removeprefix(prefix), environ.get("QUERY_STRING", ""))
                start_response(status, list(headers.items()))
                return [body]
        checks = self._checks.get(path)
        if checks is None:
            # Pages are not listed: their prefixes may be secret.
            return _json(start_response, "404 Not Found", {"available": ["/metrics", *self._checks]})
        found = checks()
        failed = {name: why for name, why in found.items() if why is not None}
        if failed:
            log.warning("check_failed", path=path, **failed)
        status = "503 Service Unavailable" if failed else "200 OK"
        return _json(start_response, status, {name: why or "ok" for name, why in found.items()})


def _json(start_response: StartResponse, status: str, body: Mapping[str, Any]) -> list[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode() + b"\n"]


def _own_address() -> str:
    """This machine's address, as others in its network know it; its name if that is not known here."""
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name
