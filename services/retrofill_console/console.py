"""The object that every page of the console uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from retrofill_console.live.hub import Hub
from retrofill_console.shared import Shared
from retrofill_core.settings import Settings
from retrofill_core.store.engine import make_engine
from retrofill_tools.client.connect import snapshot

NAME = "retrofill-console"
# Pages that are read at the same time; the others wait.
CONNECTIONS = 6


@dataclass(frozen=True)
class Console:
    """``settings`` have the console's Kafka login; ``engine`` is of the read-only role."""

    settings: Settings
    engine: Engine
    hub: Hub
    shared: Shared

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read-only transaction whose statements all see the same snapshot."""
        with snapshot(self.engine) as conn:
            yield conn


def make_console(settings: Settings) -> Console:
    """Connects to nothing yet. Raises ``NotConfigured`` if an address is missing."""
    settings.bootstrap_servers()
    hub = Hub()
    engine = make_engine(settings.dsn_of("reader"), NAME, pool_size=CONNECTIONS, limited=True)
    return Console(settings, engine, hub, Shared(lambda: hub.version))
