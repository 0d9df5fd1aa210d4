"""Lets in who is logged in, and no other site's pages; adds the headers that keep pages safe."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrofill_console.answers import JSON, failed
from retrofill_console.login import Login, is_loopback

API = "/api/"
# What may be asked for before a login.
OPEN = ("/api/me", "/api/login", "/api/openapi.json")
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
