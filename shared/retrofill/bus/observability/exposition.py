"""A service's HTTP endpoints: ``/metrics``, and ``/healthz`` and ``/readyz`` for probes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import structlog
from prometheus_client import make_wsgi_app

log = structlog.get_logger(__name__)
# By the name of a check: what is wrong, or None.
Checks = Callable[[], Mapping[str, str | None]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes arrive every few seconds."""


class Exposition:
    """The HTTP server of one service."""

    def __init__(self, host: str, port: int, health: Checks, ready: Checks) -> None:
        self._pages = {"/healthz": health, "/readyz": ready}
        self._metrics: WSGIApplication = make_wsgi_app()
        self._server = make_server(host, port, self._answer, _Server, _Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def url(self) -> str:
        """Base URL, with the port that was bound."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        """Start serving in a daemon thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and close the socket."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        checks = self._pages.get(path)
        if checks is None:
            return _json(start_response, "404 Not Found", {"available": ["/metrics", *self._pages]})
        found = checks()
        failed = {name: why for name, why in found.items() if why is not None}
        if failed:
            log.warning("check_failed", path=path, **failed)
        status = "503 Service Unavailable" if failed else "200 OK"
        return _json(start_response, status, {name: why or "ok" for name, why in found.items()})


def _json(start_response: StartResponse, status: str, body: Mapping[str, Any]) -> list[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode() + b"\n"]
