"""Gives what one reader of Kafka reads to all viewers, also to those that slept for a while."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

from retrofill_console.live.events import Batch, Event, message

_ID = re.compile(r"[0-9a-f]{1,16}(\.[0-9a-f]{1,16}){0,20000}")


# Two messages to a viewer are so far apart, or more: a page draws ten times a second.
APART_SECONDS = 0.1
# How many of the last events are kept for viewers that come back.
KEPT = 20_000
PING_SECONDS = 15.0
PING = b": still here\n\n"
# Of the browser's next try, after the console was gone.
RETRY = b"retry: 1000\n"
MISSED = "too much happened meanwhile"


class Hub:
    """Belongs to one event loop; only its thread may call this."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        # The number of the first batch kept, and how many events are kept.
        self._first, self._kept = 0, 0
        # Next offsets by place: behind all that was read, and where what is kept begins.
        self._next: list[int] = []
        self._begin: list[int] = []
        self._pending: list[Event] = []
        self._sent_at = float("-inf")
        self._problem: str | None = None
        self._waiting: set[asyncio.Event] = set()
        self._closed = False

    @property
    def version(self) -> int:
        """Rises whenever something happened."""
        return self._first + len(self._batches)

    @property
    def viewers(self) -> int:
        return len(self._waiting)

    @property
    def problem(self) -> str | None:
        """Why nothing is read."""
        return self._problem

    def start_at(self, places: Sequence[int]) -> None:
        """Begin at these offsets. What was kept is no longer joined to what follows."""
        self._first, self._kept = self.version + 1, 0
        self._batches.clear()
        self._pending.clear()
        self._next, self._begin = list(places), list(places)
        self._wake()

    def add(self, events: Sequence[Event]) -> None:
        """Take new events, in the order of each place."""
        if not self._pending:
            left = self._sent_at + APART_SECONDS - time.monotonic()
            asyncio.get_running_loop().call_later(max(left, 0.0), self._flush)
        self._pending += events

    def report(self, problem: str | None) -> None:
        """Tell viewers that nothing is read, and why, or that it is again."""
        if problem != self._problem:
            self._problem = problem
            self._wake()

    def close(self) -> None:
        """End all streams; browsers try again."""
        self._closed = True
        self._wake()

    def _flush(self) -> None:
        events, self._pending = self._pending, []
        if not events:
            return
        for event in events:
            self._next[event.place] = max(self._next[event.place], event.offset + 1)
        self._batches.append(Batch(events, written(self._next)))
        self._kept += len(events)
        self._sent_at = time.monotonic()
        while self._kept > KEPT and len(self._batches) > 1:
            self._forget()
        self._wake()

    def _forget(self) -> None:
        oldest = self._batches.popleft()
        self._first += 1
        self._kept -= len(oldest.events)
        for event in oldest.events:
            self._begin[event.place] = max(self._begin[event.place], event.offset + 1)

    def _wake(self) -> None:
        for each in self._waiting:
            each.set()

    async def stream(self, last_id: str | None, backfill: str | None) -> AsyncIterator[bytes]:
        """Server-sent events for a viewer, from behind ``last_id`` if it was here before."""
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            hello = RETRY + message("hello", {"viewers": self.viewers})
            missed = b"" if last_id is None else self._caught_up(last_id, backfill)
            at, told = self.version, None
            yield hello + missed
            while not self._closed:
                if told != self._problem:
                    told = self._problem
                    yield message("kafka", {"error": told})
                if at < self._first:
                    at = self.version
                    yield message("reload", {"why": MISSED})
                while self._first <= at < self.version:
                    yield self._batches[at - self._first].sent_to(backfill)
                    at += 1
                if await self._quiet(changed):
                    yield PING
        finally:
            self._waiting.discard(changed)

    async def _quiet(self, changed: asyncio.Event) -> bool:
        """Wait for a change; whether none came for a while."""
        try:
            await asyncio.wait_for(changed.wait(), PING_SECONDS)
        except TimeoutError:
            return True
        changed.clear()
        return False

    def _caught_up(self, last_id: str, backfill: str | None) -> bytes:
        """All that a viewer missed since that place, in one message."""
        since = read(last_id)
        if since is None or not between(self._begin, since, self._next):
            return message("reload", {"why": MISSED})
        missed = [each for batch in self._batches for each in batch.events if each.offset >= since[each.place]]
        return Batch(missed, written(self._next)).sent_to(backfill)


def written(places: Sequence[int]) -> str:
    """Offsets in hexadecimal, with dots between."""
    return ".".join(f"{each:x}" for each in places)


def read(text: str) -> list[int] | None:
    """The offsets; ``None`` if that is not one of ours."""
    return [int(each, 16) for each in text.split(".")] if _ID.fullmatch(text) else None


def between(first: Sequence[int], places: Sequence[int], last: Sequence[int]) -> bool:
    """Whether all are, each on its own partition."""
    return len(first) == len(places) == len(last) and all(
        low <= each <= high for low, each, high in zip(first, places, last, strict=True)
    )
