"""A console of an installation, and what its viewers see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.installation import Installation
from tests.support.replica import Replica

OURS = {"sec-fetch-site": "same-origin"}


@dataclass(frozen=True)
class Told:
    """A server-sent event."""

    name: str
    document: Any
    id: str | None


@dataclass
class Web:
    """A running console."""

    url: str
    replica: Replica
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, headers=OURS, timeout=40, trust_env=False)

    def get(self, path: str, **query: Any) -> Any:
        """The document of a path. Fails if it is an error."""
        found = self.client.get(path, params=query or None)
        assert found.status_code == 200, found.text
        return found.json()

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.client.post(path, json=body or {})

    @contextmanager
    def events(self, path: str = "/api/v1/live", last_id: str | None = None, **query: Any) -> Iterator[Iterator[Told]]:
        """What a viewer is told. The first event is there when this begins."""
        headers = {} if last_id is None else {"last-event-id": last_id}
        with self.client.stream("GET", path, params=query, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Told]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif not line and "event" in fields:
            yield Told(fields["event"], json.loads(fields["data"]), fields.get("id"))
            fields = {}


def start_console(made: Installation, **environment: str) -> Web:
    """A console on any free port."""
    replica = made.start("console", {"RETROFILL_CONSOLE_PORT": "0", **environment})
    ready = made.settings.home / "run" / f"console.{replica.process.pid}.ready"
    return Web(json.loads(ready.read_text())["http"], replica)
