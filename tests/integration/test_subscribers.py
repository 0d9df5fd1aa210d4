"""The example subscribers as separate processes: each sees every committed miss exactly once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.definitions import alert, daily
from tests.support.installation import ROOT, Installation, until
from tests.support.servers import Servers

from retrofill_core.contract.topics import Topic

FOLDER = ROOT / "examples" / "subscribers"
MISSES = 7


@pytest.fixture(scope="module")
def missed(servers: Servers) -> Iterator[Installation]:
    """An installation with some missed deadlines and an aborted transaction on their topic."""
    made = servers.installation()
    made.start("backfill-planner", wait=False)
    made.start("deadline-watcher")
    made.apply(daily(deadlines=[alert("soon", "RUN_QUEUED_AT", 0.2)]))
    made.request("p", "2020-01-01", "2020-01-07")
    until(lambda: len(made.events(Topic.DEADLINE_MISSED)) == MISSES, "all are missed")
    made.publish_aborted(Topic.DEADLINE_MISSED, "999", b'{"type": "DeadlineMissed", "deadline_id": 999}')
    yield made
    made.close()


def where(made: Installation) -> list[str]:
    """Command-line arguments for the examples."""
    return [made.settings.bootstrap_servers(), made.settings.topic_prefix]


def test_the_one_of_few_lines_prints_each_miss_once(missed: Installation) -> None:
    script = FOLDER / "missed.py"
    assert len(script.read_text().splitlines()) < 30
    with subprocess.Popen([sys.executable, script, *where(missed)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(MISSES)]
            process.send_signal(2)
            rest = process.stdout.read()
        finally:
            process.kill()
    assert sorted(line.split()[2][:10] for line in lines) == [f"2020-01-{day:02}" for day in range(1, MISSES + 1)]
    assert rest == ""


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_prints_each_miss_once(missed: Installation) -> None:
    command = ["sh", str(FOLDER / "missed.sh"), *where(missed), "-e"]
    fields = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    events = [line.split(" ", 1) for line in fields.stdout.splitlines()]
    assert len(events) == MISSES
    for key, value in events:
        assert key == str(json.loads(value)["deadline_id"])
    assert len({key for key, _ in events}) == MISSES
