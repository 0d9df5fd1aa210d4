"""The console's HTTP API, by the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from retrofill_client.errors import BadRequest, NoAnswer, NotAllowed, NotFound, Refused, RetrofillError, Unreachable

# The console itself waits half a minute for an answer.
TIMEOUT_SECONDS = 60.0
# Of a broken proxy's page, no more is read.
MOST_BYTES = 100_000_000
_KINDS: Mapping[int, type[RetrofillError]] = {
    400: BadRequest,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Refused,
    # Of the console, and of proxies in front of one that is not there.
    502: Unreachable,
    503: Unreachable,
    504: NoAnswer,
}


class _Stay(HTTPRedirectHandler):
    """Follows no redirection: the token would go along to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Http:
    """Implements ``client.Transport``."""

    def __init__(self, url: str, token: str | None) -> None:
        """Raises ``BadRequest`` if ``url`` is no address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise BadRequest(f"url={url!r} is no address: use one like https://retrofill.example.com")
        self._url = url.rstrip("/")
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._token = token
        self._opener = build_opener(_Stay)

    def get(self, path: Sequence[str], query: Mapping[str, Any] | None = None) -> Any:
        """The document at a path below ``/api/v1/``."""
        with self._opened("GET", path, query) as answer:
            return self._document(answer.read(MOST_BYTES))

    def post(self, path: Sequence[str], body: Mapping[str, Any]) -> Any:
        """The answer to a request."""
        with self._opened("POST", path, None, json.dumps(body).encode()) as answer:
            return self._document(answer.read(MOST_BYTES))

    def changes(self, id: str) -> Iterator[Mapping[str, Any]]:
        """The changes of a review, from a stream that says now and then that it goes on."""
        event = ""
        with self._opened("GET", ("backfills", id, "diff"), None) as answer:
            for line in answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event == "change":
                    yield json.loads(value)
                elif name == "data" and event == "problem":
                    raise Refused(json.loads(value)["error"])
                elif name == "data" and event == "end":
                    return
        raise Unreachable(f"{self._url} ended its answer too early")

    @contextmanager
    def _opened(
        self, method: str, path: Sequence[str], query: Mapping[str, Any] | None, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        address = f"{self._url}/api/v1/" + "/".join(quote(each, safe="") for each in path)
        given = {name: value for name, value in (query or {}).items() if value is not None}
        # The origin is for a console on loopback, which has no tokens.
        headers = {"Accept": "application/json", "Origin": self._origin}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = Request(
            f"{address}?{urlencode(given, doseq=True)}" if given else address, body, headers, method=method
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                yield answer
        except HTTPError as e:
            with e:
                raise self._error(e) from None
        except TimeoutError as e:
            raise NoAnswer(f"{self._url} did not answer within {TIMEOUT_SECONDS:g} s") from e
        except URLError as e:
            raise Unreachable(f"{self._url} cannot be reached: {e.reason}") from e
        except (OSError, http.client.HTTPException) as e:
            raise Unreachable(f"{self._url} cannot be reached: {e or type(e).__name__}") from e

    def _error(self, e: HTTPError) -> RetrofillError:
        try:
            said = json.loads(e.read(MOST_BYTES))
            line, reason = str(said["error"]), said.get("reason")
        except (ValueError, TypeError, KeyError, AttributeError):
            where = f" and leads to {e.headers['location']}" if e.headers and e.headers.get("location") else ""
            line, reason = f"{e.url} answers with HTTP {e.code}{where}: is it the console's address?", None
        kind = _KINDS.get(e.code, RetrofillError)
        return Refused(line, reason) if kind is Refused else kind(line)

    def _document(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError as e:
            raise RetrofillError(f"{self._url} answers with no JSON: is it the console's address?") from e
