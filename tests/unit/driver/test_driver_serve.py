"""Launches served one after the other over real pipes: the order of runs, messages, reports and the
session's release, and silence once the end has begun.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.installation import until
from tests.unit.driver.served import CODE, DONE, SessionGone, World, world, world_module

from retrofill.driver.process import LEASE_OVER
from retrofill.driver.submit import Submission
from retrofill.protocol.facts import Cost

__all__ = ["world"]

# one run


def test_a_run_from_launch_to_done_and_the_next_one(world: World) -> None:
    for _ in range(2):
        world.reports.bodies.clear()
        world.launch()
        assert world.reports.fields() == []
        world.say({"begin": 60.0})
        assert world.hear() == DONE
        assert world.reports.fields() == [
            "RunBegan",
            "TaskReported a running",
            "TaskReported a succeeded",
            "RunReported succeeded",
            "AttemptEnded done",
        ]
    world.finish()
    assert world.spark.calls == ["open", "2013-01-01T00:00:00-05:00", "release"] * 2
    assert {body["attempt_id"] for body in world.reports.bodies} == {25}
    assert {(body["run_id"], body["attempt"]) for body in world.reports.bodies if "run_id" in body} == {(1, 11)}


def test_a_run_of_scripts_only_opens_no_session(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"open({str(tmp_path / 'out')!r}, 'w').write('x')")
    submission = Submission([sys.executable, str(script)], {}, None, "tag")
    monkeypatch.setattr("retrofill.driver.submit.Submits.submission", lambda *_: submission)
    world.launch(limits={"kind": "submit", "submit": {"script": str(script)}})
    world.say({"begin": 60.0})
    assert world.hear() == DONE
    world.finish()
    assert (tmp_path / "out").exists()
    assert world.spark.calls == ["release"]


def test_a_run_has_begun_before_its_code_does(world: World) -> None:
    world.launch(wait=True)
    world.say({"begin": 60.0})
    assert world_module(world).begun.wait(10)
    # Reports are sent by a thread of their own; the code waits.
    until(lambda: world.reports.fields() != [], "the begin is reported")
    assert world.reports.fields()[0] == "RunBegan"
    world_module(world).go.set()
    assert world.hear() == DONE


def test_a_driver_that_succeeded_is_done_before_it_releases_the_session(world: World) -> None:
    world.spark.releases.clear()
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == DONE
    assert "release" not in world.spark.calls
    world.spark.releases.set()
    world.finish()
    assert [call for call in world.spark.calls if not call.startswith("20")] == ["open", "release"]


@pytest.mark.parametrize("code", [CODE, "import nonesuch_module"])
def test_a_driver_that_failed_releases_the_session_before_it_says_so(world: World, code: str) -> None:
    """A failed run may be repeated: what this attempt started in Spark must have ended by then."""
    world.file.write_text(code)
    reported: list[list[str]] = []
    world.spark.on_release = lambda: reported.append(world.settled())
    world.launch(fails=[1])
    world.say({"begin": 60.0})
    assert world.hear() == DONE
    world.finish()
    assert world.reports.fields()[-2:] == ["RunReported failed", "AttemptEnded done"]
    assert reported == [world.reports.fields()[:-2]]
    assert world.spark.calls.count("release") == 1


@pytest.mark.parametrize("fails", [[], [1]])
def test_the_last_report_says_that_the_process_stays(world: World, fails: list[int]) -> None:
    world.launch(fails=fails)
    world.say({"begin": 60.0})
    assert world.hear() == DONE
    assert world.reports.bodies[-1]["stays"]


def test_a_session_that_takes_long_to_open_sends_heartbeats_meanwhile(world: World) -> None:
    world.spark.opens.clear()
    threading.Timer(0.5, world.spark.opens.set).start()
    world.launch(lease_seconds=1.0)
    assert set(world.reports.fields()) == {"AttemptHeartbeat"}
    world.say({"begin": 60.0})
    assert world.hear() == DONE
    assert "RunReported succeeded" in world.reports.fields()


def test_what_is_left_of_the_lease_counts_from_before_the_question(world: World) -> None:
    world.launch()
    time.sleep(0.3)
    world.say({"begin": 0.2})
    assert world.hear() == DONE
    assert world.reports.fields() == ["AttemptEnded done"]


def test_work_that_outlasts_what_is_left_of_the_lease_ends_with_it(world: World) -> None:
    world.launch(wait=True)
    world.say({"begin": 2.0})
    assert world_module(world).begun.wait(10)
    assert world.left.get(timeout=10) == LEASE_OVER
    world_module(world).go.set()


def test_who_may_not_begin_runs_nothing_and_reports_its_end(world: World) -> None:
    world.launch(runs=3)
    world.begins(1, DONE, left=None)
    world.finish()
    assert world.reports.fields() == ["AttemptEnded done"]
    assert world.spark.calls == ["open", "release"]


# several runs


def test_the_runs_of_an_attempt_are_executed_one_by_one_in_one_session(world: World) -> None:
    world.launch(runs=3)
    for id in (1, 2):
        world.begins(id, {"may_begin": id + 1})
        assert world.reports.fields(id)[-1] == "RunReported succeeded"
        assert world.reports.fields(id + 1) == []
    world.begins(3, DONE)
    world.finish()
    one = ["RunBegan", "TaskReported a running", "TaskReported a succeeded", "RunReported succeeded"]
    assert world.reports.fields() == [*one * 3, "AttemptEnded done"]
    numbers = [(body["run_id"], body["attempt"]) for body in world.reports.bodies if body["type"] == "RunBegan"]
    assert numbers == [(1, 11), (2, 12), (3, 13)]
    days = [f"2013-01-{day:02}T00:00:00-05:00" for day in (1, 2, 3)]
    assert world.spark.calls == ["open", days[0], "clear", days[1], "clear", days[2], "release"]


def test_a_run_that_must_not_begin_ends_the_attempt_without_a_failure(world: World) -> None:
    world.launch(runs=3)
    world.begins(1, {"may_begin": 2})
    world.begins(2, DONE, left=None)
    assert world.reports.fields()[-2:] == ["RunReported succeeded", "AttemptEnded done"]
    assert (world.reports.fields(2), world.reports.fields(3)) == ([], [])
    world.finish()
    assert world.spark.calls == ["open", "2013-01-01T00:00:00-05:00", "clear", "release"]


def test_a_failed_run_ends_the_attempt_and_its_session_before_that_is_reported(world: World) -> None:
    reported: list[list[str]] = []
    world.spark.on_release = lambda: reported.append(world.settled())
    world.launch(runs=3, fails=[2])
    world.begins(1, {"may_begin": 2})
    world.begins(2, DONE)
    world.finish()
    assert world.reports.fields(2)[-1] == "RunReported failed"
    assert world.reports.fields(3) == []
    assert reported == [world.reports.fields()[:-2]]
    assert world.spark.calls.count("release") == 1


@pytest.mark.parametrize("world", [ConnectionError("no Spark")], indirect=True)
def test_a_session_that_cannot_be_opened_fails_the_first_run_alone(world: World) -> None:
    world.launch(runs=2)
    world.begins(1, DONE)
    assert world.reports.fields() == ["RunBegan", "RunReported failed", "AttemptEnded done"]
    assert world.reports.bodies[1]["run_id"] == 1


def test_a_session_that_cannot_be_cleared_is_closed_and_the_other_runs_are_left(world: World) -> None:
    """No run may meet what another one left behind."""
    reported: list[list[str]] = []
    world.spark.on_release = lambda: reported.append(world.settled())
    world.spark.not_cleared = RuntimeError("a view of somebody else")
    world.launch(runs=2)
    world.begins(1, DONE)
    world.finish()
    assert world.reports.fields()[-2:] == ["RunReported succeeded", "AttemptEnded done"]
    assert world.reports.fields(2) == []
    assert reported == [world.reports.fields()[:-1]]
    assert world.spark.calls.count("release") == 1


def test_a_session_that_is_lost_between_two_runs_loses_the_attempt(world: World) -> None:
    world.spark.not_cleared = SessionGone("gone")
    world.launch(runs=2)
    world.begins(1, {"lost": {"why": "Spark lost the session: gone", "shared": True}})
    assert world.left.get(timeout=10) == 1
    assert world.reports.fields(1)[-1] == "RunReported succeeded"
    assert world.reports.fields(2) == []


def test_what_spark_told_while_the_output_was_published_is_in_the_last_reports(world: World, tmp_path: Path) -> None:
    world.spark.costs = Cost(core_seconds=1.5, rows_read=7)
    world.launch(stages=str(tmp_path / "out"))
    world.begins(1, {"may_publish": [1]})
    until(lambda: all(each.name != "cost" for each in threading.enumerate()), "Spark has told")
    world.say({"publish": True})
    assert world.hear() == DONE
    assert [(body["type"], body.get("cost")) for body in world.reports.bodies[-2:]] == [
        ("RunReported", {"core_seconds": 1.5, "rows_read": 7}),
        ("AttemptEnded", {"core_seconds": 1.5, "rows_read": 7}),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_run_does_not_wait_for_what_spark_used(world: World, fails: bool) -> None:
    world.spark.costs = Cost(core_seconds=1.5)
    world.spark.tells_cost.clear()
    world.launch(fails=[1] if fails else [])
    world.say({"begin": 60.0})
    until(
        lambda: any(body["type"] == "RunReported" for body in world.reports.bodies), "the end is reported", seconds=10
    )
    world.spark.tells_cost.set()
    assert world.hear() == DONE
    assert [body["type"] for body in world.reports.bodies if "cost" in body] == ["AttemptEnded"]


def test_runs_that_share_an_attempt_are_measured_together(world: World) -> None:
    world.spark.costs = Cost(core_seconds=1.5)
    world.launch(runs=2)
    world.begins(1, {"may_begin": 2})
    world.begins(2, DONE)
    assert [body["type"] for body in world.reports.bodies if "cost" in body] == ["AttemptEnded"]


# user code that does not work


def test_code_that_cannot_be_imported_fails_the_run(world: World) -> None:
    world.file.write_text("import nonesuch_module\n")
    world.launch()
    world.say({"begin": 60.0})
    assert world.hear() == DONE
    error = world.reports.bodies[-2]["error"]
    assert error["type"] == "ModuleNotFoundError"
    assert f'{world.file}", line 1' in error["traceback"]


def test_a_task_that_the_code_has_no_longer_fails_the_run(world: World) -> None:
    world.launch(task="gone")
    world.say({"begin": 60.0})
    assert world.hear() == DONE
    assert "no longer has a task 'gone': apply it again" in world.reports.bodies[-2]["error"]["message"]


@pytest.mark.parametrize("world", [SessionGone("gone, token=abc")], indirect=True)
@pytest.mark.parametrize("shared", [True, False])
def test_a_session_that_spark_lost_loses_the_attempt_and_the_host_hears_why(world: World, shared: bool) -> None:
    world.spark.shares_server = shared
    world.launch(first={"lost": {"why": "Spark lost the session: gone, token=***", "shared": shared}})
    assert world.left.get(timeout=10) == 1
    assert "RunReported failed" not in world.reports.fields()


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
    until(lambda: world.reports.fields() == ["RunBegan", "TaskReported a running"], "nothing else was told")
