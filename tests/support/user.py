"""A user of the embedded stack: the command line in a folder, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import psycopg

from retrofill_tools.stack.processes import of_stack
from tests.support.installation import ROOT


class User:
    """A user with a terminal in a folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "flights"
        self._dsn: str | None = None
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RETROFILL_")},
            **({"RETROFILL_CACHE": os.environ["RETROFILL_CACHE"]} if "RETROFILL_CACHE" in os.environ else {}),
            "RETROFILL_HOME": str(home),
            # On a busy machine the first Spark session of a driver takes seconds without a heartbeat.
            "RETROFILL_LEASE_SECONDS": "20",
            "RETROFILL_CALLBACKS": json.dumps({"page_oncall": "callbacks:page_oncall"}),
            "FLIGHTS_PAGES": str(home / "pages"),
            "PYTHONPATH": str(ROOT / "examples" / "flights"),
        }

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run a CLI command that must succeed. Returns its output."""
        done = self.start(*arguments)
        assert done.returncode == status, f"{' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout if status == 0 else done.stderr

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a CLI command to its end, whatever its status."""
        command = [str(Path(sys.executable).with_name("retrofill")), *arguments]
        return subprocess.run(
            command, env=self.environment, cwd=self.home, capture_output=True, text=True, check=False, timeout=300
        )

    def json(self, *arguments: str) -> Any:
        """The JSON document that a command prints."""
        return json.loads(self.run(*arguments, "--json"))

    def shown_error(self, id: str) -> str:
        """The first line that ``backfill show`` has about the failed runs of a backfill."""
        shown = self.run("backfill", "show", id)
        errors = [line for line in shown.splitlines() if line.lstrip().startswith("task ")]
        assert errors, shown
        return errors[0]

    def pid(self, name: str) -> int | None:
        """The pid of a part of the stack."""
        parts = {part["name"]: part["pid"] for part in self.json("status")["parts"]}
        pid: int | None = parts[name]
        return pid

    def progress(self, id: str) -> tuple[str, int]:
        """A backfill's state and number of succeeded runs, from the rows. Polling with a CLI
        process each time would slow down the stack.
        """
        if self._dsn is None:
            self._dsn = self.json("status")["postgres"]["dsn"]
        query = (
            "SELECT state, (SELECT count(*) FROM retrofill.run WHERE backfill_id = b.id AND state = 'succeeded') "
            "FROM retrofill.backfill AS b WHERE id = %s"
        )
        with psycopg.connect(self._dsn) as conn:
            row = conn.execute(query.encode(), [id]).fetchone()
        assert row is not None, f"there is no backfill {id}"
        return row[0], row[1]

    def processes(self) -> list[psutil.Process]:
        """All processes of this stack."""
        return of_stack(json.loads((self.home / "identity.json").read_text())["id"])


def is_driver(process: psutil.Process) -> bool:
    """Whether it is a warm driver, by the module that it was started with."""
    try:
        return any(part.endswith("/retrofill/driver/__main__.py") for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False  # exited meanwhile
