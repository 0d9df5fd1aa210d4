"""A service that exits soon after each start is reported as failing, with the reason, while
supervisord keeps restarting it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.installation import until

from retrofill_tools.stack import supervision
from retrofill_tools.stack.layout import Layout
from retrofill_tools.stack.supervision import Supervisor

NAME = "backfill-planner"


def status(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from retrofill_tools.cli.main import run; run()", "status", *arguments],
        env={**os.environ, "RETROFILL_HOME": str(home), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def of_service(document: str) -> dict[str, Any]:
    return next(dict(part) for part in json.loads(document)["services"] if part["name"] == NAME)


@pytest.mark.long
def test_a_service_that_cannot_start_is_failing_and_says_why(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    assert status(tmp_path).returncode == 0
    supervisor = Supervisor(layout, layout.make_identity())
    # This home has no configuration that names a Postgres.
    supervisor.start({NAME: [sys.executable, "-m", "backfill_planner"]}, 0.0)
    try:
        supervisor.start_part(NAME)
        until(lambda: supervisor.status()[NAME].state == "failing", "it is failing", lambda: str(supervisor.status()))
        as_json, as_text = status(tmp_path, "--json"), status(tmp_path)
    finally:
        supervisor.shutdown()
    assert (as_json.returncode, as_text.returncode) == (1, 1)
    found = of_service(as_json.stdout)
    assert (found["state"], found["restarts"] >= supervision.SHORT_LIVES - 1) == ("failing", True)
    assert "RETROFILL_POSTGRES" in found["reason"]
    assert f"{NAME} is failing: {found['reason']}" in as_text.stderr


def test_only_short_lives_in_a_row_count() -> None:
    def line(at: str, what: str) -> str:
        return f"2026-01-01 {at},123 INFO {what}\n"

    def life(begin: str, end: str, how: str = "exited: x (exit status 1; not expected)") -> str:
        return line(begin, "spawned: 'x' with pid 7") + line(end, how)

    short = life("10:00:00", "10:00:05") + life("10:00:06", "10:00:20")
    noon = datetime(2026, 1, 1, 12)
    assert supervision.short_lives(short, noon) == {"x": 2}
    assert supervision.short_lives(short + life("10:00:21", "10:09:00"), noon) == {"x": 0}
    assert supervision.short_lives(short + life("10:00:21", "10:00:22", "stopped: x (exit status 0)"), noon) == {"x": 0}
    again = short + line("10:00:21", "spawned: 'x' with pid 8")
    assert supervision.short_lives(again, datetime(2026, 1, 1, 10, 0, 30)) == {"x": 2}
    assert supervision.short_lives(again, noon) == {"x": 0}
    begun_anew = short + line("11:00:00", "supervisord started with pid 1") + life("11:00:01", "11:00:02")
    assert supervision.short_lives(begun_anew, noon) == {"x": 1}
