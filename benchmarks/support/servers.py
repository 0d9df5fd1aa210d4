"""Servers and installations of a single benchmark, of the same kind as in the tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import installation
from tests.support.installation import Installation
from tests.support.servers import Servers

IDLE_STARTER = "idle-starter"


@contextmanager
def servers() -> Iterator[Servers]:
    """A Kafka and a Postgres for one benchmark."""
    with tempfile.TemporaryDirectory(prefix="retrofill-bench-") as home:
        made = Servers(Path(home))
        try:
            made.start()
            yield made
        finally:
            made.stop()


@contextmanager
def installed(on: Servers) -> Iterator[Installation]:
    """A database and topics; the processes started on them end with the block."""
    installation.MODULES[IDLE_STARTER] = "benchmarks.support.starter"
    installation.READY_AS[IDLE_STARTER] = "run-starter"
    made = on.installation()
    try:
        yield made
    finally:
        made.close()
