"""One HTTP request: resolves the host once, refuses addresses that are not public or allowed, keeps the time limit."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import httpcore
import httpx

from callback_runner.interruptible import CutOff, Permit

Address = IPv4Address | IPv6Address

# Not public, whatever ``ipaddress`` reports (RFC 6598, 7526, 6666, 3879, 8215, 5180, 9637).
_NOT_PUBLIC = [
    ip_network(text)
    for text in (
        "100.64.0.0/10",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "100::/64",
        "fec0::/10",
        "64:ff9b:1::/48",
        "2001::/23",
        "2001:db8::/32",
        "3fff::/20",
        "5f00::/16",
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")
_V4_COMPATIBLE = IPv6Network("::/96")


class Refused(Exception):
    """The webhook's host has an address that is not allowed."""


class Allowed:
    """``RETROFILL_WEBHOOK_ALLOW``: networks, and host names with any address."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            try:
                self._networks.append(ip_network(entry))
            except ValueError:
                self._hosts.add(entry.lower().rstrip("."))

    def check(self, host: str, addresses: Iterable[str]) -> None:
        """Raise ``Refused`` if one of the ``addresses`` of ``host`` is not allowed."""
        if host.lower().rstrip(".") in self._hosts:
            return
        for text in addresses:
            address = ip_address(text)
            if not is_public(address) and not self._has(address):
                raise Refused(
                    f"{host} has the address {text}, which is not public: allow the host or its network with "
                    "RETROFILL_WEBHOOK_ALLOW"
                )

    def _has(self, address: Address) -> bool:
        forms = (address, embedded(address))
        return any(form in network for form in forms if form is not None for network in self._networks)


def is_public(address: Address) -> bool:
    """Whether it is a public unicast address; an embedded IPv4 address is checked instead."""
    inner = embedded(address)
    if inner is not None:
        return is_public(inner)
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_link_local
    return address.is_global and not special and not any(address in network for network in _NOT_PUBLIC)


def embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address may route to: mapped, compatible, 6to4 or NAT64."""
    if not isinstance(address, IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _V4_COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


# Bytes of a response that are read, for the error message.
BODY_BYTES = 2000
WRITE_BYTES = 65_536
# Time to read them: an endless body must not cost the status.
BODY_SECONDS = 1.0

_PORTS = {"http": 80, "https": 443}

# As ``socket.getaddrinfo``.
Resolve = Callable[..., Sequence[tuple[Any, ...]]]


@dataclass(frozen=True)
class Answer:
    """A response. ``headers``: lower-case names; ``body``: first bytes, empty for a success."""

    status: int
    headers: dict[str, str]
    body: bytes


class NotConnected(Exception):
    """No connection was made, so nothing was sent."""


@dataclass(frozen=True)
class Sender:
    """Sends requests. Ignores the environment's proxies, which would resolve names themselves."""

    allowed: Allowed
    tls: ssl.SSLContext
    resolve: Resolve = socket.getaddrinfo

    def post(self, url: str, headers: dict[str, str], content: bytes, permit: Permit, attempt: int = 1) -> Answer:
        """POST once, without following redirects.

        Tries one address after the other, each with a fair share of the time left, until one takes the connection; from
        then on the request may arrive, so no other is tried. Every ``attempt`` (from 1) begins with another address: one
        may connect and never answer.

        Raises ``Refused`` for an address that is not allowed, ``NotConnected``, ``CutOff``, and
        httpcore's errors for a broken connection.
        """
        parts = httpx.URL(url)  # encodes international host names as ASCII, as in the check of the alert
        target = httpcore.URL(scheme=parts.raw_scheme, host=parts.raw_host, port=parts.port, target=parts.raw_path)
        host, port = parts.raw_host.decode("ascii"), parts.port or _PORTS[parts.scheme]
        # httpcore would write an IPv6 address without its brackets.
        headers = {"host": parts.netloc.decode("ascii"), **headers}
        addresses = self._addresses(host, port)
        first = (attempt - 1) % len(addresses) if addresses else 0
        problem: NotConnected | None = None
        for place, address in enumerate(addresses[first:] + addresses[:first]):
            until = time.monotonic() + permit.left() / (len(addresses) - place)
            try:
                return self._post_to(target, headers, content, _PinnedBackend(address, permit, until))
            except NotConnected as e:
                problem = e
        raise NotConnected(f"no connection to {host} port {port}: {problem or 'it has no address'}") from problem

    def _addresses(self, host: str, port: int) -> list[str]:
        """All addresses of ``host``, looked up once and checked. Raises ``NotConnected`` and ``Refused``."""
        try:
            found = self.resolve(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as e:
            raise NotConnected(f"the host {host} was not found: {e}") from e
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        self.allowed.check(host, addresses)
        return addresses

    def _post_to(
        self, target: httpcore.URL, headers: dict[str, str], content: bytes, backend: _PinnedBackend
    ) -> Answer:
        pool = httpcore.ConnectionPool(ssl_context=self.tls, network_backend=backend, max_keepalive_connections=0)
        with pool, pool.stream("POST", target, headers=list(headers.items()), content=content) as response:
            found = {
                name.decode("ascii", "replace").lower(): value.decode("latin-1") for name, value in response.headers
            }
            success = 200 <= response.status < 300
            backend.until = time.monotonic() + BODY_SECONDS
            return Answer(response.status, found, b"" if success else _beginning(response))


def make_sender(allow: Iterable[str]) -> Sender:
    """A sender with the default certificate authorities, or those in ``SSL_CERT_FILE``."""
    # At DEBUG, it logs headers of responses, which may repeat the address.
    logging.getLogger("httpcore").setLevel(logging.INFO)
    return Sender(Allowed(allow), httpx.create_ssl_context())


def _beginning(response: httpcore.Response) -> bytes:
    """The first bytes of the body; errors are ignored, because the status decides."""
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
    """Yield the seconds left for one step. Raises ``CutOff`` if they were not enough."""
    try:
        yield permit.left()
    except httpcore.TimeoutException:
        permit.left()
        raise


class _PinnedBackend(httpcore.NetworkBackend):
    """Connects to one address. ``connect_until``: when its share of the time ends, TLS included (monotonic)."""

    def __init__(self, address: str, permit: Permit, connect_until: float) -> None:
        self._address = address
        self._permit = permit
        self._connect_until = connect_until
        self._sockets = httpcore.SyncBackend()
        # When reading must stop, set once the status has arrived.
        self.until = float("inf")

    def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - its checked address is used
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - the permit's limit applies
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Raises ``NotConnected`` and ``CutOff``."""
        with self.connecting("") as left:
            stream = self._sockets.connect_tcp(self._address, port, left, local_address, socket_options)
        return _Stream(stream, self._permit, self)

    @contextmanager
    def connecting(self, what: str) -> Iterator[float]:
        """Yield the seconds left to connect. Raises ``NotConnected``, and ``CutOff`` if no time is left for others."""
        try:
            with _in_time(self._permit) as left:
                yield max(0.001, min(left, self._connect_until - time.monotonic()))
        except (httpcore.NetworkError, httpcore.TimeoutException) as e:
            raise NotConnected(f"{what}{self._address}: {e}") from e


class _Stream(httpcore.NetworkStream):
    """Limits every step to the time left, so a slow trickle of bytes cannot exceed the limit."""

    def __init__(self, inner: httpcore.NetworkStream, permit: Permit, backend: _PinnedBackend) -> None:
        self._inner = inner
        self._permit = permit
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - as above
        with _in_time(self._permit) as left:
            return self._inner.read(max_bytes, max(0.001, min(left, self._backend.until - time.monotonic())))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
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
        timeout: float | None = None,  # noqa: ARG002 - as above
    ) -> httpcore.NetworkStream:
        """Verify the URL's host name, not the address."""
        with self._backend.connecting(f"no TLS connection to {server_hostname} at ") as left:
            return _Stream(self._inner.start_tls(ssl_context, server_hostname, left), self._permit, self._backend)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
