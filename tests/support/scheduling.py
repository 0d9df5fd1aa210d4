"""The assignment of tests to workers, and their order.

A file's tests run on one worker, and so do those of a folder that share a server: a second one would take a minute of CPU
to start and to warm up.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# Those with a server of the session that only they use.
TOGETHER = ("tests/integration/tables", "tests/integration/driver")
# What takes longest comes first, small files last: so all workers end at about the same time.
FIRST = (*TOGETHER, "tests/acceptance", "tests/integration/stack", "tests/chaos", "tests/integration", "tests/console")


def place(file: str) -> int:
    """Where a file comes in the order of all."""
    folders = [str(folder) for folder in PurePosixPath(file).parents]
    return next((number for number, first in enumerate(FIRST) if first in folders), len(FIRST))


def by_shared_server(config: pytest.Config, log: Any) -> Any:
    """A scheduler that assigns whole files, or whole folders of ``TOGETHER``."""
    made = LoadFileScheduling(config, log)
    file_of = made._split_scope
    made._split_scope = lambda nodeid: _together(file_of(nodeid))
    return made


def _together(file: str) -> str:
    folder = str(PurePosixPath(file).parent)
    return folder if folder in TOGETHER else file
