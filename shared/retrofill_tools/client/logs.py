"""Reads the log of an attempt: from this disk, or from the run-starter that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import httpx

from retrofill.masking import masked
from retrofill_core.attempt_logs.files import NEXT, Position, read

TIMEOUT = httpx.Timeout(30.0, connect=5.0)


class Source(Protocol):
    """One place where a log may be."""

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        """What follows ``at``, and where that ends. ``None``: there is no log. Raises ``OSError``."""


class OnDisk:
    """The files of a folder that this machine has."""

    def __init__(self, folder: Path, attempt_id: int) -> None:
        self._folder = folder
        self._attempt_id = attempt_id

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        return read(self._folder, self._attempt_id, at)


class Unreachable(OSError):
    """A run-starter does not answer. The message names its address without the secret."""


class OverHttp:
    """The page of a run-starter (``run_starter.host.log_page``)."""

    def __init__(self, address: str, attempt_id: int) -> None:
        self._url = f"{address}{attempt_id}"
        # Not through a proxy of the environment: it is a host of ours.
        self._client = httpx.Client(timeout=TIMEOUT, trust_env=False)

    def read(self, at: Position) -> tuple[bytes, Position] | None:
        try:
            answer = self._client.get(self._url, params={"at": str(at)})
            if answer.status_code == httpx.codes.NOT_FOUND:
                return None
            answer.raise_for_status()
            return answer.content, Position.parse(answer.headers[NEXT])
        except (httpx.HTTPError, KeyError, ValueError) as e:
            where = httpx.URL(self._url)
            why = f"status {e.response.status_code}" if isinstance(e, httpx.HTTPStatusError) else str(e)
            # Not from ``e``: a traceback would show the secret in its address.
            raise Unreachable(f"http://{where.netloc.decode()} does not answer: {why}") from None


def find(sources: Sequence[Source]) -> tuple[Source | None, str | None]:
    """The first place that has the log, else why one of them could not be asked."""
    problem = None
    for source in sources:
        try:
            if source.read(Position()) is not None:
                return source, None
        except OSError as e:
            problem = problem or str(e)
    return None, problem


class Tail:
    """The lines of a log without their ends, with secrets masked, a part at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = Position()
        self._rest = b""

    def more(self) -> list[str] | None:
        """The next complete lines; ``None``: nothing was added. Raises ``OSError``."""
        data, self._at = self._source.read(self._at) or (b"", self._at)
        *complete, self._rest = (self._rest + data).split(b"\n")
        return [_shown(line) for line in complete] if data else None

    def more_if_there(self, *, last: bool) -> list[str] | None:
        """``more``, but what fails is nothing for now: unless it is ``last``, the host will answer again."""
        try:
            return self.more()
        except OSError:
            if last:
                raise
            return None

    def rest(self) -> list[str]:
        """The last line, if it has no end."""
        return [_shown(self._rest)] if self._rest else []


def _shown(line: bytes) -> str:
    return masked(line.decode("utf-8", "replace"))


def lines(source: Source, goes_on: Callable[[], bool]) -> Iterator[str]:
    """The lines of a log, one after the other.

    At the end of what is there, ``goes_on`` waits and says whether more may come. Raises ``OSError``.
    """
    tail, last = Tail(source), False
    while True:
        found = tail.more_if_there(last=last)
        if found is not None:
            yield from found
        elif last:
            break
        else:
            # What was written before the end of the attempt was known is still read.
            last = not goes_on()
    yield from tail.rest()
