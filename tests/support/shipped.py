"""A user who writes, applies and runs a pipeline by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.installation import Installation, until

# Each run writes the text of a module that it imports lazily. The first run of a gated backfill
# waits at the gate.
FLOW = """
import os
from pathlib import Path

from retrofill import Pipeline

flow = Pipeline("flow", schedule="@daily", start="2013-01-01", max_active_runs=3)

@flow.task
def write(run):
    gate = Path(run.conf["out"], f"{run.backfill_id}.gate")
    if gate.exists():
        gate.open().close()
        gate.unlink()
    import words
    Path(run.conf["out"], f"{run.backfill_id}-{run.interval.start:%d}").write_text(words.TEXT)
"""


@dataclass(frozen=True)
class User:
    """A user who writes and applies a pipeline in their own folder."""

    made: Installation
    folder: Path
    environment: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from retrofill_tools.cli.main import run; run()", *arguments],
            env={**os.environ, **self.made.environment(), **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def ask(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def apply(self, text: str) -> str:
        """Apply the flow with this text. Returns the hash of its archive."""
        (self.folder / "flow.py").write_text(FLOW)
        (self.folder / "words.py").write_text(f"TEXT = {text!r}\n")
        (result,) = self.ask("pipelines", "apply", str(self.folder / "flow.py"))["pipelines"]
        assert result["accepted"] and result["changed"]
        return str(result["code_sha256"])

    def create(self, id: str, month: int, *more: str, gate: bool = False) -> None:
        """Request a backfill of the first three days of a month, one run at a time."""
        if gate:
            os.mkfifo(self.folder / f"{id}.gate")
        days = ["--from", f"2013-{month:02}-01", "--to", f"2013-{month:02}-03", "--max-active-runs", "1"]
        conf = json.dumps({"out": str(self.folder)})
        self.ask("backfill", "create", "flow", *days, "--id", id, "--conf", conf, *more)

    def open_gate(self, id: str) -> None:
        """Release the first run, once it waits at the gate."""
        until(lambda: _opened(self.folder / f"{id}.gate"), f"the first run of {id} waits at its gate")

    def wrote(self, id: str) -> list[str]:
        return [(self.folder / f"{id}-{day:02}").read_text() for day in (1, 2, 3)]

    def used(self, id: str) -> list[str | None]:
        """The code hash that each run used, according to its row, in interval order."""
        rows = self.made.query("SELECT code_sha256 FROM run WHERE backfill_id = %s ORDER BY position", id)
        return [row["code_sha256"] for row in rows]


def _opened(gate: Path) -> bool:
    """Whether a reader waits at the gate; opening it releases that reader."""
    try:
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def user_of(installation: Installation, folder: Path, **environment: str) -> User:
    """A user, and the services that they need, with this environment. ``folder``: for the user's code."""
    given = {**environment, "RETROFILL_DRIVER_SLOTS": "3"}
    folder.mkdir()
    installation.start("backfill-planner", given)
    installation.start("light-starter", given)
    return User(installation, folder, given)
