"""Every command in docs/kafka-tooling.md, in the page's order, on its own installation."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.definitions import alert, daily
from tests.support.installation import ROOT, Installation, until
from tests.support.kafka_tools import make_tools

from retrofill_core.contract.topics import SERVICES, Topic

PAGE = (ROOT / "docs" / "kafka-tooling.md").read_text()
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.skipif(not (shutil.which("kcat") and shutil.which("jq")), reason="kcat or jq is not installed")


@dataclass(frozen=True)
class Shell:
    """Runs the page's commands unchanged except for the topic prefix."""

    made: Installation
    tools: Path

    def run(self, command: str) -> str:
        """Run the command, which must succeed. Returns its stdout."""
        prefix = self.made.settings.topic_prefix
        command = re.sub(r"(-t |--topic |--group )retrofill\.", rf"\g<1>{prefix}", command)
        path = f"{self.tools}:/usr/local/bin:/usr/bin:/bin"
        environment = {"BROKERS": self.made.settings.bootstrap_servers(), "PATH": path}
        done = subprocess.run(["sh", "-ec", command], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout


def one(pattern: str) -> str:
    """The page's only command that matches."""
    found: str
    (found,) = [command for command in COMMANDS if re.search(pattern, command, re.DOTALL)]
    return found


@pytest.mark.long
def test_every_command_of_the_page_does_what_the_page_says(installation: Installation, tmp_path: Path) -> None:
    stack, shell = installation, Shell(installation, make_tools(tmp_path))
    for name in ("backfill-planner", "instant-starter", "deadline-watcher"):
        stack.start(name, wait=False, INSTANT_SECONDS="0.5")
    stack.apply(daily("flights", deadlines=[alert("soon", "RUN_STARTED_AT", 0.1)]))
    ran = set()

    def run(pattern: str) -> str:
        ran.add(one(pattern))
        return shell.run(one(pattern))

    run("BackfillRequested")
    stack.outcome("january")
    assert '"BackfillPlanned"' in run("grep '.january '")
    for wish, state in (("Pause", "paused"), ("Resume", "running")):
        run(f"Backfill{wish}Requested")
        stack.wait_state("january", state)
    until(lambda: stack.runs_by_state("january").get("succeeded", 0) > 0, "something is done")
    run("BackfillChangeRequested")
    until(lambda: stack.value("SELECT max_active_runs FROM backfill WHERE id = 'january'") == 4, "it is changed")
    run("RunRetryRequested")
    stack.wait_event(
        Topic.BACKFILL_EVENTS,
        lambda e: e.body.get("in_reply_to") == "retry-january-1" and "none of its runs" in e.body["message"],
        "nothing failed",
    )
    run("RunCancelRequested")
    until(lambda: stack.runs_by_state("january").get("cancelled") == 2, "two days are cancelled")
    run("BackfillCancelRequested")
    stack.wait_state("january", "cancelled")
    until(lambda: "cancelled" in run("backfill-states"), "the state is told")
    followed = run("in_reply_to}")
    for wanted in ("BackfillPlanned", "BackfillPaused", "BackfillResumed", "BackfillCancelling", "BackfillCancelled"):
        assert f'"type":"{wanted}"' in followed
    assert '"in_reply_to":"pause-january-1"' in followed
    run("BackfillProgress")
    assert '"type":"RunSucceeded","interval_start":"2013-01-01T00:00:00Z","attempt":1' in run("run-events")
    assert "flights/2013-01-01T00:00:00+00:00\tsucceeded\n" in run("interval-states")
    assert "january\tcancelled\t31" in run("backfill-states")
    until(lambda: '"DeadlineMissed"' in run("^kcat.*deadline-missed"), "a miss")
    run("no json at all")
    stack.wait_event(Topic.DEAD_LETTERS, lambda e: e.key == "broken", "the dead letter")
    letters = run("dead-letters.*%h")
    assert "the value is not JSON" in letters
    assert "retrofill_origin_topic=backfill-requests" in letters
    run("export PLACE")
    until(lambda: [e.key for e in stack.events(Topic.DEAD_LETTERS)].count("broken") == 2, "it is refused again")
    until(lambda: " 0 " in run("kafka-consumer-groups"), "the committed offsets follow")
    described = run("kafka-consumer-groups")
    assert "backfill-requests" in described
    assert "backfill-planner-" in described, "the client id names service, host and process"
    missed = run("kafka-console-consumer")
    assert missed.count("DeadlineMissed") == stack.value("SELECT count(*) FROM deadline WHERE state = 'missed'")
    assert ran == set(COMMANDS), "no command of the page was left out"


def test_the_groups_that_the_page_names_exist() -> None:
    for group in re.findall(r"--group retrofill\.(\S+)", PAGE):
        assert group in SERVICES
