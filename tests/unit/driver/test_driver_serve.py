"""Launches served one after the other over real pipes: the order of messages, reports and the
session's release, and silence once the end has begun.
"""

from __future__ import annotations

import threading
import time

import pytest
from tests.unit.driver.served import SessionGone, World, world, world_module

from retrofill.driver.process import LEASE_OVER

__all__ = ["world"]


def test_a_run_from_launch_to_done_and_the_next_one(world: World) -> None:
    for _ in range(2):
        world.broker.bodies.clear()
        world.launch()
        assert world.broker.fields() == []
        world.say({"begin": 60.0})
        assert world.hear() == {"done": {"reported": True}}
        assert world.broker.fields() == [
            "TaskReported a running",
            "TaskReported a succeeded",
            "RunReported succeeded",
        ]
    world.finish()
    assert world.spark.calls == ["open", "2013-01-01T00:00:00-05:00", "release"] * 2


def test_a_driver_that_succeeded_is_done_before_it_releases_the_session(world: World) -> None:
    world.spark.releases.clear()
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert "release" not in world.spark.calls
    # The next attempt's session is opened after the release of the last one.
    threading.Timer(0.2, world.spark.releases.set).start()
    world.launch()
    assert [call for call in world.spark.calls if not call.startswith("20")] == ["open", "release", "open"]


FAILS = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
@p.task
def a(run):
    run.spark.append("used")
    raise ValueError("no luck")
"""


@pytest.mark.parametrize("code", [FAILS, "import nonesuch_module"])
def test_a_driver_that_failed_releases_the_session_before_it_says_so(world: World, code: str) -> None:
    """A failed run may be repeated: what this attempt started in Spark must have ended by then."""
    world.file.write_text(code)
    reported: list[list[str]] = []
    world.spark.on_release = lambda: reported.append(world.broker.fields())
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    world.finish()
    assert world.broker.fields()[-1] == "RunReported failed"
    assert reported == [world.broker.fields()[:-1]]
    assert world.spark.calls.count("release") == 1


def test_a_session_that_takes_long_to_open_sends_heartbeats_meanwhile(world: World) -> None:
    world.spark.opens.clear()
    threading.Timer(0.5, world.spark.opens.set).start()
    world.launch(lease_seconds=1.0)
    assert set(world.broker.fields()) == {"RunHeartbeat"}
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert "RunReported succeeded" in world.broker.fields()


def test_what_is_left_of_the_lease_counts_from_before_the_question(world: World) -> None:
    world.launch()
    time.sleep(0.3)
    world.say({"begin": 0.2})
    assert world.hear() == {"done": {"reported": False}}
    assert world.broker.fields() == []


def test_work_that_outlasts_what_is_left_of_the_lease_ends_with_it(world: World) -> None:
    world.launch(wait=True)
    world.say({"begin": 1.0})
    assert world_module(world).begun.wait(10)
    assert world.left.get(timeout=10) == LEASE_OVER
    world_module(world).go.set()


def test_who_may_not_begin_runs_and_reports_nothing(world: World) -> None:
    world.launch()
    world.say({"begin": None})
    assert world.hear() == {"done": {"reported": False}}
    world.finish()
    assert world.broker.fields() == []
    assert world.spark.calls == ["open", "release"]


def test_code_that_cannot_be_imported_fails_the_run(world: World) -> None:
    world.file.write_text("import nonesuch_module\n")
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    error = world.broker.bodies[-1]["error"]
    assert error["type"] == "ModuleNotFoundError"
    assert f'{world.file}", line 1' in error["traceback"]


def test_a_task_that_the_code_has_no_longer_fails_the_run(world: World) -> None:
    world.launch(task="gone")
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert "no longer has a task 'gone': apply it again" in world.broker.bodies[-1]["error"]["message"]


@pytest.mark.parametrize("world", [ConnectionError("no Spark")], indirect=True)
def test_a_session_that_cannot_be_opened_fails_the_run(world: World) -> None:
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == {"done": {"reported": True}}
    assert world.broker.fields() == ["RunReported failed"]


@pytest.mark.parametrize("world", [SessionGone("gone, token=abc")], indirect=True)
def test_a_session_that_spark_lost_loses_the_attempt_and_the_host_hears_why(world: World) -> None:
    world.launch(first={"lost": "Spark lost the session: gone, token=***"})
    assert world.left.get(timeout=10) == 1
    assert "RunReported failed" not in world.broker.fields()


@pytest.mark.parametrize("how", ["hang up", "end", "nonsense"])
def test_the_end_interrupts_and_what_fails_by_it_is_not_told(world: World, how: str) -> None:
    world.launch(wait=True)
    world.say({"begin": 60.0})
    module = world_module(world)
    assert module.begun.wait(10)
    if how == "hang up":
        world.to_driver.close()
    else:
        world.say({"end": True} if how == "end" else [])  # type: ignore[arg-type]
    assert world.left.get(timeout=10) == (1 if how == "nonsense" else 0)
    assert world.spark.calls[-1] == "interrupt"
    module.go.set()
    threading.Event().wait(0.1)
    assert world.broker.fields() == ["TaskReported a running"]
