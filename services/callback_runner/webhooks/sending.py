"""One HTTP request to a checked address: resolved once, connected to what was checked, over in its time."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx

from callback_runner.tries import CutOff, Permit
from callback_runner.webhooks.addresses import Allowed

# So much of an answer is read: it is for the error, and nobody needs more.
BODY_BYTES = 2000
WRITE_BYTES = 65_536
# And for so long: the status has come, and is not to be lost to a body that does not end.
BODY_SECONDS = 1.0

# As ``socket.getaddrinfo``.
Resolve = Callable[..., Sequence[tuple[Any, ...]]]


@dataclass(frozen=True)
class Answer:
    """What came back. ``body``: its first bytes."""

    status: int
    headers: dict[str, str]
    body: bytes


class NotConnected(Exception):
    """There was no connection; nothing was sent."""


@dataclass(frozen=True)
class Sender:
    """Sends requests. Proxies of the environment are not used: they would resolve names on their own."""

    allowed: Allowed
    tls: ssl.SSLContext
    resolve: Resolve = socket.getaddrinfo

    def post(self, url: str, headers: dict[str, str], content: bytes, permit: Permit) -> Answer:
        """POST once; follows no redirect.

        Raises ``Refused`` for an address that is not allowed, ``NotConnected``, ``CutOff``, and what httpcore raises
        for a connection that broke.
        """
        parts = httpx.URL(url)  # as in the check of the alert: names in other scripts become ASCII
        target = httpcore.URL(scheme=parts.raw_scheme, host=parts.raw_host, port=parts.port, target=parts.raw_path)
        backend = _CheckedBackend(self.allowed, self.resolve, permit)
        pool = httpcore.ConnectionPool(ssl_context=self.tls, network_backend=backend, max_keepalive_connections=0)
        with pool, pool.stream("POST", target, headers=list(headers.items()), content=content) as response:
            found = {
                name.decode("ascii", "replace").lower(): value.decode("latin-1") for name, value in response.headers
            }
            success = 200 <= response.status < 300
            backend.until = time.monotonic() + BODY_SECONDS
            return Answer(response.status, found, b"" if success else _beginning(response))


def make_sender(allow: Iterable[str]) -> Sender:
    """With the usual certificate authorities; ``SSL_CERT_FILE`` names others."""
    return Sender(Allowed(allow), httpx.create_ssl_context())


def _beginning(response: httpcore.Response) -> bytes:
    """What can be had of the body: the status has come, so nothing else is uncertain."""
    body = b""
    try:
        for part in response.iter_stream():
            body += part
            if len(body) >= BODY_BYTES:
                break
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, CutOff):
        pass
    return body[:BODY_BYTES]


@contextmanager
def _in_time(permit: Permit) -> Iterator[float]:
    """One step with all the time that is left. Raises ``CutOff`` when that was not enough."""
    try:
        yield permit.left()
    except httpcore.TimeoutException:
        permit.left()
        raise


class _CheckedBackend(httpcore.NetworkBackend):
    """Resolves a name once, checks all of its addresses, and connects to one of those."""

    def __init__(self, allowed: Allowed, resolve: Resolve, permit: Permit) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._permit = permit
        self._sockets = httpcore.SyncBackend()
        # From when on reading is over, once there is a status.
        self.until = float("inf")

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the permit's is in force
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """A connection to a checked address. Raises ``Refused``, ``NotConnected`` and ``CutOff``."""
        try:
            found = self._resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as e:
            raise NotConnected(f"the host {host} was not found: {e}") from e
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        self._allowed.check(host, addresses)
        problem: Exception | None = None
        for address in addresses:
            try:
                with _in_time(self._permit) as left:
                    stream = self._sockets.connect_tcp(address, port, left, local_address, socket_options)
                return _Stream(stream, self._permit, self)
            except (httpcore.NetworkError, httpcore.TimeoutException) as e:
                problem = e
        raise NotConnected(f"no connection to {host} port {port}: {problem or 'it has no address'}") from problem


class _Stream(httpcore.NetworkStream):
    """Every step has the time that is left, so that a byte now and then does not go on for ever."""

    def __init__(self, inner: httpcore.NetworkStream, permit: Permit, backend: _CheckedBackend) -> None:
        self._inner = inner
        self._permit = permit
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        with _in_time(self._permit) as left:
            return self._inner.read(max_bytes, max(0.001, min(left, self._backend.until - time.monotonic())))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        for start in range(0, len(buffer), WRITE_BYTES):
            self._permit.begin()
            with _in_time(self._permit) as left:
                self._inner.write(buffer[start : start + WRITE_BYTES], left)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        """The name of the URL is verified, not the address."""
        try:
            with _in_time(self._permit) as left:
                return _Stream(self._inner.start_tls(ssl_context, server_hostname, left), self._permit, self._backend)
        except (httpcore.NetworkError, httpcore.TimeoutException) as e:
            raise NotConnected(f"no TLS connection to {server_hostname}: {e}") from e

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
