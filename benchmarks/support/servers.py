"""Servers and installations of one benchmark, as real as those of the tests, and nobody else's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import installation
from tests.support.installation import Installation, Servers

IDLE_STARTER = "idle-starter"


@contextmanager
def servers() -> Iterator[Servers]:
    """A Kafka and a Postgres of their own."""
    with tempfile.TemporaryDirectory(prefix="retrofill-bench-") as home:
        made = Servers(Path(home))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@contextmanager
def installed(on: Servers) -> Iterator[Installation]:
    """A database and topics of its own; the processes that it starts end with it."""
    installation.MODULES[IDLE_STARTER] = "benchmarks.support.starter"
    installation.READY_AS[IDLE_STARTER] = "run-starter"
    made = on.installation()
    try:
        yield made
    finally:
        made.close()
