"""Launches that stage output: it is published only once the host says that it was accepted, while the
driver executes the next run.
"""

from __future__ import annotations

import json
import queue
import shutil
from pathlib import Path

import pytest
from tests.support.installation import until
from tests.unit.driver.launches import launch_of, run_of
from tests.unit.driver.served import DONE, World, world

from retrofill.outputs.kept import key_of
from retrofill.outputs.staging import Staging

__all__ = ["world"]
STAGES = """
from pathlib import Path
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", timezone="America/New_York")
@p.task
def a(run):
    path = f"{run.conf['out']}/day={run.id}"
    folder = Path(run.stage(path))
    folder.mkdir()
    (folder / "part-0").write_text(f"attempt {run.attempt}")
    assert run.staged(path) == str(folder)
    if run.id in run.conf.get("fails", ()):
        raise ValueError("after staging")
"""


def test_staged_output_is_published_once_the_host_says_that_it_was_accepted(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.begins(1, {"may_publish": [1]})
    assert not (tmp_path / "day=1").exists()
    assert world.reports.fields()[-1] == "RunStaged"
    assert world.reports.bodies[-1]["outputs"] == [f"{tmp_path}/day=1"]
    world.say({"publish": True})
    assert world.hear() == DONE
    assert (tmp_path / "day=1" / "part-0").read_text() == "attempt 11"
    assert world.reports.fields()[-2:] == ["RunReported succeeded", "AttemptEnded done"]
    marker = json.loads((tmp_path / "day=1" / "_retrofill.json").read_text())
    assert (marker["pipeline"], marker["backfill_id"], marker["run_id"], marker["attempt_id"]) == ("p", "b", 1, 25)


def test_output_that_was_not_accepted_is_neither_published_nor_told(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.begins(1, {"may_publish": [1]})
    world.say({"publish": False})
    assert world.hear() == DONE
    assert not (tmp_path / "day=1").exists()
    assert world.reports.fields()[-2:] == ["RunStaged", "AttemptEnded done"]


def test_what_a_failed_attempt_staged_is_dropped(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path), fails=[1])
    world.begins(1, DONE)
    assert world.reports.fields()[-2] == "RunReported failed"
    assert [path for path in tmp_path.rglob("*") if path.name == "part-0"] == []


def test_what_a_lost_driver_staged_is_published_without_spark_and_user_code(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.begins(1, {"may_publish": [1]})
    world.say({"publish": False})
    world.hear()
    world.finish()
    world.spark.calls.clear()
    world.reports.bodies.clear()
    world.file.write_text("raise AssertionError('no user code is to be imported')")
    # The attempt that staged it has another id than the one that publishes it.
    area = tmp_path / "_retrofill" / f"day=1@{key_of('', 1)}"
    (area / "25.publish-0").rename(area / "9.publish-0")
    world.launch(publication={"publication": 1, "accepted_attempt": 9, "outputs": [f"{tmp_path}/day=1"]})
    world.begins(1, DONE)
    assert (tmp_path / "day=1" / "part-0").read_text() == "attempt 11"
    assert world.spark.calls == []
    assert world.reports.fields() == ["RunBegan", "RunReported succeeded", "AttemptEnded done"]
    assert [body.get("publication") for body in world.reports.bodies] == [1, 1, None]


def test_a_publisher_publishes_what_several_attempts_have_staged_one_after_the_other(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose output cannot be published now holds up no other. The runs of an attempt are published together."""
    monkeypatch.setattr("retrofill.outputs.tables.turns.SECONDS", 0.0)
    (mnt := tmp_path / "mnt").mkdir()
    paths, attempts = [tmp_path / "day=1", mnt / "day=2", tmp_path / "day=3", tmp_path / "day=4"], [9, 8, 7, 9]
    for id, (path, attempt) in enumerate(zip(paths, attempts, strict=True), 1):
        run = run_of(id, f"2013-01-{id:02}T05:00:00Z", f"2013-01-{id + 1:02}T05:00:00Z", attempt=10)
        launch = launch_of(run, attempt_id=attempt)
        staging = Staging(launch, launch.pieces[0])
        (folder := Path(staging.stage("a", str(path)))).mkdir()
        (folder / "part-0").write_text(f"run {id}")
        staging.seal()
    # Its disk is not mounted any more.
    mnt.rename(tmp_path / "unmounted")
    world.launch(
        accepted=[
            {"publication": 1, "accepted_attempt": attempt, "outputs": [str(path)]}
            for path, attempt in zip(paths, attempts, strict=True)
        ]
    )
    world.begins(1, {"may_begin": 2})
    assert [(tmp_path / f"day={id}").exists() for id in (1, 3, 4)] == [True, False, True]
    world.begins(2, {"may_begin": 3})
    world.begins(3, DONE)
    assert (tmp_path / "day=3" / "part-0").read_text() == "run 3"
    ends = [
        (body["run_id"], body["type"])
        for body in world.reports.bodies
        if body["type"] not in ("RunBegan", "AttemptEnded")
    ]
    assert ends == [(1, "RunReported"), (4, "RunReported"), (2, "RunPublicationPutOff"), (3, "RunReported")]
    assert world.reports.fields()[-1] == "AttemptEnded released"


def test_a_publisher_that_cannot_publish_now_is_released_and_serves_others(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrofill.outputs.tables.turns.SECONDS", 0.0)
    # Its disk is not mounted.
    outputs = [f"{tmp_path}/mnt/day=1"]
    world.launch(publication={"publication": 1, "accepted_attempt": 9, "outputs": outputs})
    world.begins(1, DONE)
    assert world.reports.fields() == ["RunBegan", "RunPublicationPutOff", "AttemptEnded released"]
    put_off, ended = world.reports.bodies[1:]
    assert put_off["error"]["message"] == f"{tmp_path}/mnt is not there" == ended["error"]["message"]
    assert (put_off["publication"], ended["stays"]) == (1, True)


def test_output_that_cannot_be_published_now_is_left_to_others_while_its_attempt_goes_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrofill.outputs.tables.turns.SECONDS", 0.0)
    world.file.write_text(STAGES)
    world.launch(runs=2, out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.says(2) == [{"may_begin": 2}, {"may_publish": [1]}]
    monkeypatch.setattr("retrofill.outputs.publication.exchange", lambda *_: _away())
    world.say({"publish": True})
    world.begins(2, {"may_publish": [2]})
    world.say({"publish": True})
    assert world.hear() == DONE
    assert [world.reports.fields(run)[-1] for run in (1, 2)] == ["RunPublicationPutOff"] * 2
    assert world.reports.fields()[-1] == "AttemptEnded done"


def _away() -> None:
    raise OSError("the server of the files does not answer")


# several runs


def test_the_next_run_is_executed_while_the_output_of_the_last_one_waits_for_its_acceptance(
    world: World, tmp_path: Path
) -> None:
    world.file.write_text(STAGES)
    world.launch(runs=3, out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.says(2) == [{"may_begin": 2}, {"may_publish": [1]}]
    # One publication at a time: the second run is staged, and the driver does not ask for it yet.
    world.begins(2, {"may_begin": 3})
    assert world.reports.fields(2)[-1] == "RunStaged"
    assert not (tmp_path / "day=1").exists()
    world.say({"publish": True})
    assert world.hear() == {"may_publish": [2]}
    assert (tmp_path / "day=1" / "part-0").read_text() == "attempt 11"
    assert world.reports.fields(1)[-1] == "RunReported succeeded"
    # The attempt ends after the last publication, although no run is left.
    world.say({"begin": None})
    with pytest.raises(queue.Empty):
        world.heard.get(timeout=0.3)
    assert "AttemptEnded done" not in world.reports.fields()
    world.say({"publish": True})
    assert world.hear() == DONE
    assert (tmp_path / "day=2" / "part-0").read_text() == "attempt 12"
    assert world.reports.fields()[-2:] == ["RunReported succeeded", "AttemptEnded done"]


def test_a_run_whose_output_is_left_to_others_does_not_end_the_attempt(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(runs=2, out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.says(2) == [{"may_begin": 2}, {"may_publish": [1]}]
    world.say({"publish": False})
    world.begins(2, {"may_publish": [2]})
    world.say({"publish": True})
    assert world.hear() == DONE
    assert world.reports.fields(1)[-1] == "RunStaged"
    assert world.reports.fields(2)[-1] == "RunReported succeeded"
    assert not (tmp_path / "day=1").exists()


def test_what_was_staged_before_a_run_failed_is_still_published(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(runs=2, out=str(tmp_path), fails=[2])
    world.say({"begin": 60.0})
    assert world.says(2) == [{"may_begin": 2}, {"may_publish": [1]}]
    world.say({"begin": 60.0})
    until(lambda: world.reports.fields()[-1] == "RunReported failed", "the second run fails")
    world.say({"publish": True})
    assert world.hear() == DONE
    assert (tmp_path / "day=1" / "part-0").exists()
    assert not (tmp_path / "day=2").exists()
    assert world.reports.fields(1)[-1] == "RunReported succeeded"


def test_output_that_cannot_be_published_fails_its_run_and_no_other(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrofill.outputs.tables.turns.SECONDS", 0.0)
    world.file.write_text(STAGES)
    world.launch(runs=2, out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.says(2) == [{"may_begin": 2}, {"may_publish": [1]}]
    shutil.rmtree(tmp_path / "_retrofill" / f"day=1@{key_of('', 1)}")
    world.say({"publish": True})
    world.begins(2, {"may_publish": [2]})
    world.say({"publish": True})
    assert world.hear() == DONE
    assert world.reports.fields(1)[-1] == "RunReported failed"
    assert world.reports.fields(2)[-1] == "RunReported succeeded"
