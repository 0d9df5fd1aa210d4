"""Identifies viewers and their roles (the account on loopback, the holder of a token, or the user that a proxy names), keeps
others and other sites' pages out, and adds the headers that keep pages safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from typing import Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrofill.errors import UserError
from retrofill_console.answers import JSON, Forbidden, failed
from retrofill_core.setting_types import Role
from retrofill_core.settings import Settings
from retrofill_tools.client.connect import MAX_NAME, local_user
from retrofill_tools.client.tokens import TokenFile

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
UNKNOWN = "this token is unknown or was revoked; ask the console's operator for a new one: retrofill tokens create USER --role ROLE"
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
            return failed("the address has a NUL character, which no host name may have", 400)
        connection = HTTPConnection(scope)
        peer = None if connection.client is None else connection.client.host
        try:
            viewer = self._login.viewer(headers, connection.cookies, peer)
        except UserError as e:
            return failed(str(e), 503)
        scope.setdefault("state", {})["viewer"] = viewer
        if viewer is None and path not in OPEN:
            given = headers.get("authorization") or connection.cookies.get(COOKIE)
            return failed(UNKNOWN if given else "log in first", 401, login=self._login.kind)
        if method in SAFE:
            from_elsewhere = headers.get("sec-fetch-site", "none") not in OWN
            return failed("the console does not answer other sites' pages", 403) if from_elsewhere else None
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
BEARER = "bearer "
# In the setting of roles: everybody else.
ALL_OTHERS = "*"


@dataclass(frozen=True)
class Viewer:
    """Who asks; ``by_header``: a program that sent the token itself, not a browser that adds a cookie."""

    name: str | None
    role: Role
    by_header: bool = False


def needs(viewer: Viewer, role: Role, what: str) -> None:
    """Raises ``Forbidden`` if the viewer's role does not allow it."""
    if not viewer.role.allows(role):
        raise Forbidden(
            f"{what} needs the role {role}, and {viewer.name} has {viewer.role}: ask the console's operator"
        )


class Login:
    """How viewers log in, from the settings."""

    def __init__(self, settings: Settings) -> None:
        """Raises ``UserError`` if others than this machine could come in without a login."""
        self._tokens = None if settings.console_tokens is None else TokenFile(settings.console_tokens)
        self._header = settings.console_user_header
        self._proxies = [ip_network(each) for each in settings.console_proxies]
        self._roles = settings.console_roles
        _check(settings.console_host, self._tokens is not None, self._header, bool(self._proxies))

    @property
    def kind(self) -> Literal["none", "token", "proxy"]:
        if self._header is not None:
            return "proxy"
        return "none" if self._tokens is None else "token"

    def viewer(self, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str | None) -> Viewer | None:
        """Who sent these headers (lower-case names) from the address ``peer``; ``None``: not logged in.

        Raises ``UserError`` if the file of tokens cannot be read.
        """
        if self.kind == "none":
            return Viewer(local_user(), Role.OPERATE)
        given = _as_utf8(headers.get("authorization", ""))
        if given[: len(BEARER)].lower() == BEARER and (by_token := self.holder(given[len(BEARER) :].strip())):
            return replace(by_token, by_header=True)
        # A proxy may pass on an authorization that is for itself.
        if (
            self._header is not None
            and self._is_proxy(peer)
            and (name := _clean(_as_utf8(headers.get(self._header.lower(), ""))))
        ):
            return Viewer(name, self._roles.get(name, self._roles.get(ALL_OTHERS, Role.READ)))
        return self.holder(cookies.get(COOKIE, ""))

    def holder(self, token: str) -> Viewer | None:
        """Whose token it is. Raises ``UserError`` if the file of tokens cannot be read."""
        found = None if self._tokens is None else self._tokens.find(token)
        return None if found is None else Viewer(found.user, found.role)

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


def _check(host: str, tokens: bool, header: str | None, proxies: bool) -> None:
    if header is not None and not proxies:
        raise UserError(
            "RETROFILL_CONSOLE_USER_HEADER without RETROFILL_CONSOLE_PROXIES: anyone could send it; name the proxy's address"
        )
    if not tokens and header is None and not is_loopback(host):
        raise UserError(
            f"RETROFILL_CONSOLE_HOST={host} lets others in without a login: set RETROFILL_CONSOLE_TOKENS, or "
            "RETROFILL_CONSOLE_USER_HEADER and RETROFILL_CONSOLE_PROXIES"
        )
