"""Launches that stage output: it is published only once the host says that the attempt was accepted."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.driver.served import World, world

__all__ = ["world"]
STAGES = """
from pathlib import Path
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", timezone="America/New_York")
@p.task
def a(run):
    folder = Path(run.stage(run.conf["out"] + "/day=1"))
    folder.mkdir()
    (folder / "part-0").write_text(f"attempt {run.attempt}")
    assert run.staged(run.conf["out"] + "/day=1") == str(folder)
    if run.conf.get("fail"):
        raise ValueError("after staging")
"""


def test_staged_output_is_published_once_the_host_says_that_it_was_accepted(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.hear() == {"may_publish": True}
    assert not (tmp_path / "day=1").exists()
    assert world.broker.fields()[-1] == "RunStaged"
    assert world.broker.bodies[-1]["outputs"] == [f"{tmp_path}/day=1"]
    world.say({"publish": True})
    assert world.hear() == {"done": {"reported": True}}
    assert (tmp_path / "day=1" / "part-0").read_text() == "attempt 1"
    assert world.broker.fields()[-1] == "RunReported succeeded"
    marker = json.loads((tmp_path / "day=1" / "_retrofill.json").read_text())
    assert (marker["pipeline"], marker["backfill_id"], marker["run_id"], marker["attempt"]) == ("p", "b", 1, 1)


def test_output_that_was_not_accepted_is_neither_published_nor_told(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.hear() == {"may_publish": True}
    world.say({"publish": False})
    assert world.hear() == {"done": {"reported": False}}
    assert not (tmp_path / "day=1").exists()
    assert world.broker.fields()[-1] == "RunStaged"


def test_what_a_failed_attempt_staged_is_dropped(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path), fail=True)
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert world.broker.fields()[-1] == "RunReported failed"
    assert [path for path in tmp_path.rglob("*") if path.name == "part-0"] == []


def test_what_a_lost_driver_staged_is_published_without_spark_and_user_code(world: World, tmp_path: Path) -> None:
    world.file.write_text(STAGES)
    world.launch(out=str(tmp_path))
    world.say({"begin": 60.0})
    assert world.hear() == {"may_publish": True}
    world.say({"publish": False})
    world.hear()
    world.finish()
    world.spark.calls.clear()
    world.broker.bodies.clear()
    world.file.write_text("raise AssertionError('no user code is to be imported')")
    world.launch(publication=1, outputs=[f"{tmp_path}/day=1"])
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert (tmp_path / "day=1" / "part-0").read_text() == "attempt 1"
    assert world.spark.calls == []
    assert world.broker.fields() == ["RunReported succeeded"]
    assert [body["publication"] for body in world.broker.bodies] == [1]
