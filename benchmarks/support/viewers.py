"""Viewers of a console: connections that read its live stream and note when they were told something."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

MARK = "mark"


@dataclass
class Viewer:
    """One connection. ``told``: when it was told of each marked event, by the monotonic clock."""

    told: dict[str, float] = field(default_factory=dict)
    bytes: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self, url: str) -> None:
        """Read until cancelled."""
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(f"GET /api/v1/live HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        try:
            while line := await reader.readline():
                self.bytes += len(line)
                if line.startswith(b"event: hello"):
                    self.ready.set()
                elif line.startswith(b"data: ") and MARK.encode() in line:
                    self._note(json.loads(line[len(b"data: ") :])["events"])
        finally:
            writer.close()

    def _note(self, events: list[dict[str, object]]) -> None:
        now = time.monotonic()
        for event in events:
            if isinstance(mark := event.get(MARK), str):
                self.told.setdefault(mark, now)


async def get(url: str, path: str) -> bytes:
    """The whole answer to a request on a connection of its own: less work for a client than with a library."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read(-1)
    finally:
        writer.close()


@asynccontextmanager
async def watching(url: str, number: int) -> AsyncIterator[list[Viewer]]:
    """So many viewers, all of them connected."""
    viewers = [Viewer() for _ in range(number)]
    tasks = [asyncio.create_task(each.watch(url)) for each in viewers]
    try:
        await asyncio.gather(*(each.ready.wait() for each in viewers))
        yield viewers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
