"""Identifies a viewer (nobody in particular on loopback, the holder of a token, or the user that a proxy names), keeps
others and other sites' pages out, and adds the headers that keep pages safe.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrofill.errors import UserError
from retrofill_console.answers import JSON, failed
from retrofill_core.settings import Settings
from retrofill_tools.client.connect import MAX_NAME, local_user

API = "/api/"
# What may be asked for before a login.
OPEN = ("/api/v1/me", "/api/v1/login", "/api/v1/openapi.json")
SAFE = ("GET", "HEAD")
# Sent by browsers: who made this request. "none" is the user, from the address bar.
OWN = ("same-origin", "none")
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
FOREIGN = "another site's page sent this; scripts send Origin: with the console's address, or Authorization: Bearer"


class Guard:
    """Wraps the application. Who asks is in ``request.state.viewer``."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, _safely(scope, send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers, method, path = Headers(scope=scope), scope["method"], scope["path"]
        if self._login.kind == "none" and not _is_own_name(headers.get("host", "")):
            # A page whose name was made to lead here could read everything.
            return failed("open the console by the name localhost or the address 127.0.0.1", 403)
        if not path.startswith(API):
            return None
        if "\0" in path or b"%00" in scope["query_string"]:
            return failed("the address has a NUL character, which no name has", 400)
        connection = HTTPConnection(scope)
        peer = None if connection.client is None else connection.client.host
        viewer = self._login.viewer(headers, connection.cookies, peer)
        scope.setdefault("state", {})["viewer"] = viewer
        if viewer is None and path not in OPEN:
            return failed("log in first", 401, login=self._login.kind)
        if method in SAFE:
            from_elsewhere = headers.get("sec-fetch-site", "none") not in OWN
            return failed("this is no answer to another site's page", 403) if from_elsewhere else None
        if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            return failed(f"send the content type {JSON}", 415)
        if viewer is not None and viewer.by_header:
            return None
        return None if _is_from_us(headers) else failed(FOREIGN, 403)


def _is_own_name(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:  # half a bracket
        return False


def _is_from_us(headers: Headers) -> bool:
    """Whether one of our own pages sent it: browsers say so, and no script of another page can say it for them."""
    if headers.get("sec-fetch-site") in OWN:
        return True
    # Browsers without that header, and those that talk to a plain address.
    origin = headers.get("origin")
    return "sec-fetch-site" not in headers and origin is not None and urlsplit(origin).netloc == headers.get("host")


def _safely(scope: Scope, send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            # Files are asked for again, and answered by their tag.
            headers.setdefault("cache-control", "no-store" if scope["path"].startswith(API) else "no-cache")
        await send(message)

    return with_headers


COOKIE = "retrofill_console"
KEEP_SECONDS = 7 * 86_400
MIN_TOKEN = 16
NAMELESS = "console"
BEARER = "bearer "


@dataclass(frozen=True)
class Viewer:
    """Who asks; ``by_header``: a program that sent the token itself, not a browser that adds a cookie."""

    name: str | None
    by_header: bool = False


class Login:
    """How viewers log in, from the settings."""

    def __init__(self, settings: Settings, now: float | None = None) -> None:
        """Raises ``UserError`` if others than this machine could come in without a login."""
        self._token = None if settings.console_token is None else settings.console_token.get_secret_value()
        self._header = settings.console_user_header
        self._proxies = [ip_network(each) for each in settings.console_proxies]
        self._now = now
        _check(settings.console_host, self._token, self._header, bool(self._proxies))

    @property
    def kind(self) -> Literal["none", "token", "proxy"]:
        if self._header is not None:
            return "proxy"
        return "none" if self._token is None else "token"

    def viewer(self, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str | None) -> Viewer | None:
        """Who sent these headers (lower-case names) from the address ``peer``; ``None``: not logged in."""
        if self.kind == "none":
            return Viewer(local_user())
        if (
            self._header is not None
            and self._is_proxy(peer)
            and (name := _clean(_as_utf8(headers.get(self._header.lower(), ""))))
        ):
            return Viewer(name)
        if self._token is None:
            return None
        given = _as_utf8(headers.get("authorization", ""))
        if given[: len(BEARER)].lower() == BEARER and self.is_token(given[len(BEARER) :].strip()):
            return Viewer(NAMELESS, by_header=True)
        name = self._name_in(cookies.get(COOKIE, ""))
        return None if name is None else Viewer(name)

    def is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def cookie(self, name: str | None) -> str:
        """What a browser keeps instead of the token, for a week. Only to be given for the token."""
        until = int(self._time()) + KEEP_SECONDS
        text = f"{until}.{base64.urlsafe_b64encode((_clean(name) or NAMELESS).encode()).decode()}"
        return f"{text}.{self._signed(text)}"

    def _name_in(self, cookie: str) -> str | None:
        text, _, signature = cookie.rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._signed(text).encode()):
            return None
        until, _, name = text.partition(".")
        return base64.urlsafe_b64decode(name).decode() if int(until) > self._time() else None

    def _signed(self, text: str) -> str:
        """Nobody without the token can sign; a new token ends all logins."""
        key = hashlib.sha256(f"{COOKIE}:{self._token}".encode()).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

    def _time(self) -> float:
        return time.time() if self._now is None else self._now

    def _is_proxy(self, peer: str | None) -> bool:
        try:
            address = ip_address(peer or "")
        except ValueError:
            return False
        return any(address in network for network in self._proxies)


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached by it. Of names, others than localhost may lead anywhere."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _as_utf8(header: str) -> str:
    """A header as it was meant: decoded as Latin-1, while proxies and programs send UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _clean(name: str | None) -> str | None:
    """A name that is printable, without spaces around it."""
    found = (name or "").strip()[:MAX_NAME]
    return found if found and found.isprintable() else None


def _check(host: str, token: str | None, header: str | None, proxies: bool) -> None:
    if token is not None and len(token) < MIN_TOKEN:
        raise UserError(
            f"RETROFILL_CONSOLE_TOKEN is too short: use {MIN_TOKEN} characters or more (openssl rand -hex 16)"
        )
    if header is not None and not proxies:
        raise UserError(
            "RETROFILL_CONSOLE_USER_HEADER without RETROFILL_CONSOLE_PROXIES: anyone could send it; name the proxy's address"
        )
    if token is None and header is None and not is_loopback(host):
        raise UserError(
            f"RETROFILL_CONSOLE_HOST={host} lets others in without a login: set RETROFILL_CONSOLE_TOKEN_FILE, or "
            "RETROFILL_CONSOLE_USER_HEADER and RETROFILL_CONSOLE_PROXIES"
        )
