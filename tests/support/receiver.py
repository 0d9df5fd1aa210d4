"""A webhook receiver: an HTTP server in this process with scripted responses."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """One received request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """A scripted response. With ``hold``, it is sent once that event is set."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hold: threading.Event | None = None


class Receiver:
    """Answers each path with its scripted responses, repeating the last one; 204 without any."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "0.0.0.0") -> None:
        self.requests: list[Request] = []
        self._answers: dict[str, list[Answer]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer((host, 0), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def answer(self, path: str, *answers: Answer) -> str:
        """Set the responses of a path. Returns its URL."""
        with self._lock:
            self._answers[path] = list(answers)
        return self.url(path)

    def got(self, path: str) -> list[Request]:
        """The requests received for a path."""
        return [request for request in list(self.requests) if request.path == path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            answers = self._answers.get(request.path) or [Answer()]
            return answers.pop(0) if len(answers) > 1 else answers[0]

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                body = self.rfile.read(length)
                if len(body) < length:
                    return  # the caller was killed while it sent
                answer = receiver._take(
                    Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                )
                if answer.hold is not None:
                    answer.hold.wait(60)
                try:
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(answer.body)))
                    self.end_headers()
                    self.wfile.write(answer.body)
                except OSError:
                    pass  # the caller did not wait

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@contextmanager
def receiving(tls: ssl.SSLContext | None = None, host: str = "0.0.0.0") -> Iterator[Receiver]:
    """A receiver for the duration of the block; HTTPS with ``tls``."""
    receiver = Receiver(tls, host)
    try:
        yield receiver
    finally:
        receiver.close()
