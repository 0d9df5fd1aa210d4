"""Staged output through the real run-starter: drivers are stopped at every point of publication and
resumed after others have continued.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation, until
from tests.support.replica import Replica
from tests.support.stacks import days, written_by
from tests.support.tiers import some

from retrofill.outputs.kept import AREA, KEPT, key_of
from retrofill_core.contract.topics import Topic

LEASE = {"RETROFILL_LEASE_SECONDS": "3"}
# In execution order. Before ``stage:told`` the attempt is not accepted, so another attempt repeats
# the work.
POINTS = (
    "stage:sealed",
    "stage:told",
    "publish:look",
    "publish:list",
    "publish:retire",
    "publish:exchange",
    "publish:clean",
    "publish:done",
)


@pytest.fixture
def stack(installation: Installation) -> Installation:
    """An installation with a planner and a pipeline."""
    installation.start("backfill-planner")
    installation.apply(daily(max_active_runs=4))
    return installation


def starter(stack: Installation, out: Path, **more: str) -> Replica:
    """A run-starter whose drivers stage their output."""
    return stack.start("instant-starter", {**LEASE, **more}, INSTANT_OUT=str(out))


def backfill(stack: Installation, first: str, last: str) -> str:
    """Process the range, again if needed. Returns the id once it has succeeded."""
    id = stack.request("p", first, last, reprocess_behavior="completed")
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    return id


def test_output_appears_when_its_attempt_was_accepted_and_a_later_run_replaces_it(
    stack: Installation, tmp_path: Path
) -> None:
    starter(stack, tmp_path)
    first = backfill(stack, "2020-01-01", "2020-01-06")
    assert days(tmp_path) == written_by(stack, first)
    again = backfill(stack, "2020-01-03", "2020-01-04")
    assert days(tmp_path) == written_by(stack, first) | written_by(stack, again)
    assert [path.name for path in (tmp_path / AREA).iterdir()] == [KEPT]
    stack.wait_published()
    fields = [e.body for e in stack.events(Topic.RUN_EVENTS) if e.key == first]
    for run in {body["run_id"] for body in fields}:
        kinds = [body["type"] for body in fields if body["run_id"] == run and body["type"] != "TaskStateChanged"]
        assert kinds == ["RunStarted", "RunPublishing", "RunSucceeded"]


def leave_behind(stack: Installation, folder: Path) -> None:
    """The directory of an earlier run of the installation, which is to be retired."""
    key = key_of(stack.value("SELECT id FROM installation"), 0)
    (folder / AREA / f"day=2020-01-01@{key}").mkdir(parents=True)


@pytest.mark.parametrize("point", some(POINTS, "publish:exchange"))
def test_a_driver_stopped_anywhere_and_woken_after_a_later_run_changes_nothing(
    stack: Installation, tmp_path: Path, point: str
) -> None:
    # Publish an older output first, so there is something to displace and to retire.
    before = starter(stack, tmp_path)
    backfill(stack, "2020-01-01", "2020-01-01")
    leave_behind(stack, tmp_path)
    before.stop()
    stopped = starter(stack, tmp_path, RETROFILL_CRASH_POINT=f"{point}:stop")
    id = stack.request("p", "2020-01-01", "2020-01-01", reprocess_behavior="completed")
    until(stopped.is_stopped, f"it is stopped at {point}", stopped.said)
    starter(stack, tmp_path)
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    assert days(tmp_path) == written_by(stack, id)
    accepted = POINTS.index(point) >= POINTS.index("stage:told")
    (run,) = stack.query("SELECT attempt, publication, accepted_attempt FROM run WHERE backfill_id = %s", id)
    assert (run["attempt"], run["publication"]) == ((1, 1) if accepted else (2, 0))
    first, second = stack.query("SELECT id, mode, outcome FROM attempt WHERE backfill_id = %s ORDER BY id", id)
    assert (first["mode"], first["outcome"]) == ("each", "lost")
    assert second["mode"] == ("publish" if accepted else "each")
    assert run["accepted_attempt"] == (first if accepted else second)["id"]
    later = backfill(stack, "2020-01-01", "2020-01-01")
    table = days(tmp_path)
    assert table == written_by(stack, later)
    stopped.thaw()
    # Its last report, after it was refused or has completed its remaining steps.
    until(lambda: is_ignored(stack, "AttemptEnded", first["id"]), "the woken driver ends", stopped.said)
    assert days(tmp_path) == table
    assert [row["state"] for row in stack.query("SELECT state FROM run")] == ["succeeded"] * 3


# Nothing is there yet that could be exchanged.
@pytest.mark.long
@pytest.mark.parametrize("point", (*POINTS[1:], "publish:rename"))
def test_a_driver_killed_anywhere_after_it_staged_is_not_run_again(
    stack: Installation, tmp_path: Path, point: str
) -> None:
    if point == "publish:retire":
        leave_behind(stack, tmp_path)
    killed = starter(stack, tmp_path, RETROFILL_CRASH_POINT=point)
    id = stack.request("p", "2020-01-01", "2020-01-01")
    until(lambda: killed.process.poll() is not None, f"it is killed at {point}", killed.said)
    assert killed.process.returncode == -9
    log = tmp_path / "work.jsonl"
    starter(stack, tmp_path, INSTANT_LOG=str(log))
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    assert days(tmp_path) == written_by(stack, id)
    assert not log.exists() or log.read_text() == ""
    (run,) = stack.query("SELECT attempt, publication, lost_attempts FROM run WHERE backfill_id = %s", id)
    assert run == {"attempt": 1, "publication": 1, "lost_attempts": 0}
    modes = stack.query("SELECT mode FROM attempt WHERE backfill_id = %s ORDER BY id", id)
    assert [row["mode"] for row in modes] == ["each", "publish"]


@pytest.mark.long
def test_of_an_attempt_of_several_runs_only_those_not_accepted_are_run_again(
    stack: Installation, tmp_path: Path
) -> None:
    stack.apply(daily(max_active_runs=1, batch_size=4))
    killed = starter(stack, tmp_path, RETROFILL_CRASH_POINT="publish:rename")
    id = stack.request("p", "2020-01-01", "2020-01-08")
    until(lambda: killed.process.poll() is not None, "it is killed", killed.said)
    log = tmp_path / "work.jsonl"
    starter(stack, tmp_path, INSTANT_LOG=str(log))
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    assert days(tmp_path) == written_by(stack, id)
    first = stack.query("SELECT id, runs, outcome FROM attempt WHERE backfill_id = %s ORDER BY id LIMIT 1", id)[0]
    assert (first["runs"], first["outcome"]) == (4, "lost")
    runs = stack.query(
        "SELECT id, position, attempt, publication, accepted_attempt FROM run WHERE backfill_id = %s", id
    )
    accepted = [run for run in runs if run["accepted_attempt"] == first["id"]]
    assert min(run["position"] for run in accepted) == 0
    # It was killed before it had published the first one.
    assert {(run["attempt"], run["publication"]) for run in accepted} == {(1, 1)}
    again = [json.loads(line)["run"] for line in log.read_text().splitlines()]
    assert sorted(again) == sorted(run["id"] for run in runs if run not in accepted)


@pytest.mark.long
def test_output_that_was_deleted_before_it_was_published_fails_the_run(stack: Installation, tmp_path: Path) -> None:
    killed = starter(stack, tmp_path, RETROFILL_CRASH_POINT="publish:look")
    id = stack.request("p", "2020-01-01", "2020-01-01")
    until(lambda: killed.process.poll() is not None, "it is killed", killed.said)
    for folder in (tmp_path / AREA).iterdir():
        folder.rename(tmp_path / "elsewhere")
    starter(stack, tmp_path)
    assert stack.wait_state(id, "succeeded", "failed") == "failed"
    (run,) = stack.query("SELECT error FROM run WHERE backfill_id = %s", id)
    assert run["error"]["type"] == "StagedOutputGone"


def is_ignored(stack: Installation, report: str, attempt_id: int) -> bool:
    """Whether a replica logged that it ignored such a report of an attempt."""
    lines = [line for replica in stack.replicas for line in replica.said().splitlines()]
    signs = ('"report_ignored"', f'"{report}"', f'"attempt": {attempt_id},')
    return any(all(sign in line for sign in signs) for line in lines)
