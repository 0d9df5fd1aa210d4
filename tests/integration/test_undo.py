"""Undo through the real services: what runs replaced comes back, once, unless it was published again since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.definitions import alert, daily
from tests.support.events import Event
from tests.support.installation import Installation
from tests.support.stacks import days, written_by
from tests.support.terminal import Cli, cli, point_at

from retrofill_core.contract.backfills import BackfillPublishRequested, BackfillUndoRequested
from retrofill_core.contract.topics import Topic

__all__ = ["cli"]
LAST = "2020-01-04"
COMPLETED = "completed"


@pytest.fixture
def stack(installation: Installation, tmp_path: Path) -> Installation:
    """Two days by the backfill ``before``, and these and two more by ``wrong``."""
    installation.start("backfill-planner")
    installation.apply(daily(max_active_runs=4, batch_size=2, deadlines=[alert("late", "RUN_QUEUED_AT", 3600.0)]))
    starter(installation, tmp_path)
    for id, last in (("before", "2020-01-02"), ("wrong", LAST)):
        installation.request("p", "2020-01-01", last, id=id, reprocess_behavior=COMPLETED, max_active_runs=3)
        installation.wait_state(id, "succeeded")
    return installation


def starter(stack: Installation, out: Path, **more: str) -> Any:
    return stack.start("instant-starter", more, INSTANT_OUT=str(out), RETROFILL_LEASE_SECONDS="3")


def undo(stack: Installation, undoes: str = "wrong", id: str = "undo", **more: object) -> Event:
    """The reply."""
    request = BackfillUndoRequested.model_validate({"undoes": undoes, **more})
    return stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, id, request))


def test_what_was_replaced_comes_back_and_the_intervals_count_as_not_run(stack: Installation, tmp_path: Path) -> None:
    assert days(tmp_path) == written_by(stack, "wrong")
    answer = undo(stack).body
    assert (answer["type"], answer["runs"], answer["undoes"]) == ("BackfillPlanned", 4, "wrong")
    assert answer["max_active_runs"] == 3, "that of the undone backfill"
    stack.wait_state("undo", "succeeded")
    assert days(tmp_path) == written_by(stack, "before")
    assert (
        stack.value("SELECT count(*) FROM deadline AS d JOIN run ON run.id = d.run_id WHERE run.backfill_id = 'undo'")
        == 0
    )
    stack.wait_published()
    events = [e.body for e in stack.events(Topic.RUN_EVENTS) if e.key == "undo"]
    assert [body["type"] for body in events if body["run_id"] == events[0]["run_id"]].count("RunSucceeded") == 1
    said_to_undo = {body["undoes_run_id"] for body in events}
    assert said_to_undo == {row["id"] for row in stack.query("SELECT id FROM run WHERE backfill_id = 'wrong'")}
    (end,) = [e.body for e in stack.events(Topic.BACKFILL_EVENTS) if e.key == "undo" and "ended_at" in e.body]
    assert (end["type"], end["undoes"]) == ("BackfillSucceeded", "wrong")
    states = [e.body for e in stack.events(Topic.INTERVAL_STATES) if e.body["backfill_id"] == "undo"]
    assert sorted(each["undoes_run_id"] for each in states) == sorted(said_to_undo)
    assert {each["state"] for each in states} == {"undone"}
    # Neither the undone runs nor the undo count: the first two days are done, the others are not.
    stack.request("p", "2020-01-01", LAST, id="again")
    assert stack.outcome("again").body["skipped"] == {"already exists": 2}
    stack.wait_state("again", "succeeded")
    assert days(tmp_path) == written_by(stack, "before") | written_by(stack, "again")


@pytest.mark.long
def test_what_was_published_again_or_undone_is_left_alone(stack: Installation, tmp_path: Path) -> None:
    stack.request("p", "2020-01-01", "2020-01-01", id="later", reprocess_behavior=COMPLETED)
    stack.wait_state("later", "succeeded")
    assert undo(stack, id="u1", to="2020-01-03").body["skipped"] == {"published again since": 1}
    stack.wait_state("u1", "succeeded")
    answer = undo(stack, id="u2").body
    assert (answer["runs"], answer["skipped"]) == (1, {"published again since": 1, "undone already": 2})
    stack.wait_state("u2", "succeeded")
    message = undo(stack, id="u3").body["message"]
    assert message == "nothing to undo: of 4 data intervals 1 published again since, 3 undone already"
    # Once what replaced it is undone as well, it can be.
    assert undo(stack, "later", id="u4").body["runs"] == 1
    stack.wait_state("u4", "succeeded")
    assert undo(stack, id="u5").body["runs"] == 1
    stack.wait_state("u5", "succeeded")
    assert days(tmp_path) == written_by(stack, "before")


@pytest.mark.long
def test_what_somebody_else_changed_fails_alone(
    stack: Installation, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "day=2020-01-03" / "_retrofill.json").unlink()
    undo(stack)
    stack.wait_state("undo", "failed")
    stack.wait_published()
    last = {e.key: e.body["state"] for e in stack.events(Topic.INTERVAL_STATES)}
    assert sorted(last.values()) == ["succeeded", "undone", "undone", "undone"], "one is as it was"
    (failed,) = stack.query("SELECT error FROM run WHERE backfill_id = 'undo' AND state = 'failed'")
    assert failed["error"]["type"] == "PublishedAgain"
    assert "day=2020-01-03 was changed after run" in failed["error"]["message"]
    kept = {"day=2020-01-03": written_by(stack, "wrong")["day=2020-01-03"]}
    assert days(tmp_path) == written_by(stack, "before") | kept
    point_at(stack, monkeypatch)
    shown = cli("intervals", "show", "p", "2020-01-03").out
    assert "was to restore what run" in shown and "undone by" not in shown
    # It does not count as undone.
    assert undo(stack, id="again").body["runs"] == 1


@pytest.mark.long
def test_what_cannot_be_undone_is_rejected(stack: Installation, tmp_path: Path) -> None:
    """A bad request, an active backfill, and an undo."""
    for undoes, more, reason, message in (
        ("nothing", {}, "unknown_backfill", "there is no backfill 'nothing' to undo"),
        (
            "wrong",
            {"from": "2020-01-03", "to": "2020-01-01"},
            "bad_range",
            "'from' 2020-01-03 is after 'to' 2020-01-01",
        ),
        ("wrong", {"from": "2021-01-01"}, "empty_range", "backfill wrong has no run in this range"),
    ):
        answer = undo(stack, undoes, id=f"for {reason}", **more).body
        assert (answer["type"], answer["reason"]) == ("BackfillRejected", reason)
        assert message in answer["message"]
    stack.request("p", "2020-01-01", LAST, id="review", reprocess_behavior=COMPLETED, publish="review")
    stack.wait_state("review", "in_review")
    assert "backfill review is in_review: wait for its end" in undo(stack, "review", id="u1").body["message"]
    answer = undo(stack, id="u2").body
    assert (answer["reason"], answer["conflicting_backfill_id"]) == ("overlap", "review")
    stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, "review", BackfillPublishRequested()))
    stack.wait_state("review", "succeeded")
    assert undo(stack, "review", id="u3", publish="review").body["runs"] == 4
    stack.wait_state("u3", "in_review")
    assert days(tmp_path) == written_by(stack, "review")
    stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, "u3", BackfillPublishRequested()))
    stack.wait_state("u3", "succeeded")
    assert days(tmp_path) == written_by(stack, "wrong")
    message = undo(stack, "u3", id="u4").body["message"]
    assert message == "backfill u3 is itself the undo of review: request its data intervals again instead"


@pytest.mark.long
def test_by_the_command_line(stack: Installation, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(stack, monkeypatch)
    dry = ("backfill", "undo", "wrong", "--from", "2020-01-02", "--dry-run")
    assert "would undo 3 of 3 intervals (3 undo)" in cli(*dry).out
    assert cli(*dry, "--json").document["runs"] == 3
    assert days(tmp_path) == written_by(stack, "wrong")
    done = cli("backfill", "undo", "wrong", "--from", "2020-01-02", "--id", "c", "--yes", "--watch")
    assert (done.status, "which undo backfill wrong" in done.out) == (0, True)
    first = {"day=2020-01-01": written_by(stack, "wrong")["day=2020-01-01"]}
    assert days(tmp_path) == written_by(stack, "before") | first
    assert "undoes" in cli("backfill", "show", "c").out
    shown = cli("intervals", "show", "p", "2020-01-02").out
    assert "undone by run" in shown and "restored what run" in shown
    assert "is an undo: request it again" in cli("backfill", "retry", "c").err
    assert (cli(*dry).status, cli(*dry).err) == (
        1,
        "retrofill: nothing to undo: of 3 data intervals 3 undone already\n",
    )
    assert cli("backfill", "undo", "nothing", "--dry-run").status == 1


@pytest.mark.long
def test_a_purge_deletes_what_was_replaced_long_ago_and_leaves_what_can_be_undone(
    stack: Installation, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(stack, monkeypatch)
    with stack.session() as conn:
        conn.execute("UPDATE retrofill.backfill SET ended_at = ended_at - interval '100 days'")
        conn.execute("UPDATE retrofill.run SET finished_at = finished_at - interval '100 days'")
        conn.commit()
    (today,) = (tmp_path / "_retrofill" / "kept").iterdir()
    today = today.rename(today.with_name((datetime.now(UTC) - timedelta(days=3)).date().isoformat()))
    # Whoever purges may have none of the run-starters' settings, or others.
    monkeypatch.setenv("RETROFILL_KEEP_REPLACED_DAYS", "1")
    assert cli("purge", "--yes", "--older-than", "90d").status == 0
    assert today.exists()
    undo(stack)
    stack.wait_state("undo", "succeeded")
    assert set(days(tmp_path)) == {"day=2020-01-01", "day=2020-01-02"}
    for number, kept in enumerate([*today.parent.iterdir()], 1):
        kept.rename(kept.with_name(f"2013-01-0{number}"))
    with stack.session() as conn:
        conn.execute("UPDATE retrofill.backfill SET ended_at = now() - interval '100 days', purged_at = NULL")
        conn.commit()
    assert cli("purge", "--yes", "--older-than", "90d").status == 0
    assert list((tmp_path / "_retrofill" / "kept").iterdir()) == []
