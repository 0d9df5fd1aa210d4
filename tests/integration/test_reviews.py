"""Reviews through the real services: what is staged is published or discarded by request only, once."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from tests.support.definitions import alert, daily
from tests.support.events import Event
from tests.support.installation import Installation, until
from tests.support.stacks import days, written_by
from tests.support.terminal import Cli, cli, point_at
from tests.support.tiers import some

from retrofill_core.contract.backfills import (
    BackfillCancelRequested,
    BackfillDiscardRequested,
    BackfillPublishRequested,
)
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Topic

__all__ = ["cli"]


@pytest.fixture
def stack(installation: Installation, tmp_path: Path) -> Installation:
    """An installation whose runs stage a folder a day, of which the first two are published already."""
    installation.start("backfill-planner")
    installation.apply(daily(max_active_runs=4, batch_size=2))
    starter(installation, tmp_path)
    installation.wait_state(installation.request("p", "2020-01-01", "2020-01-02", id="before"), "succeeded")
    return installation


def starter(stack: Installation, out: Path, **more: str) -> None:
    stack.start("instant-starter", more, INSTANT_OUT=str(out), RETROFILL_LEASE_SECONDS="3")


def review(stack: Installation, id: str = "r", last: str = "2020-01-04", **more: object) -> str:
    """Request the days again, to be reviewed."""
    return stack.request("p", "2020-01-01", last, id=id, publish="review", reprocess_behavior="completed", **more)


def command(stack: Installation, id: str, message: Message) -> Event:
    return stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, id, message))


def test_nothing_is_published_before_the_review_and_all_of_it_once_after(stack: Installation, tmp_path: Path) -> None:
    """Deadlines count the moment of staging."""
    stack.start("deadline-watcher")
    slow = [alert("run", "RUN_QUEUED_AT", 3600.0), alert("whole", "BACKFILL_REQUESTED_AT", 3600.0)]
    stack.apply(daily(max_active_runs=4, batch_size=2, deadlines=slow))
    id = review(stack)
    stack.wait_state(id, "in_review")
    met = "SELECT count(*) FROM deadline WHERE state = 'met'"
    until(lambda: stack.value(met) == 5, "four runs and their backfill are in time before the review ends")
    assert days(tmp_path) == written_by(stack, "before")
    assert stack.runs_by_state(id) == {"staged": 4}
    assert stack.value("SELECT count(*) FROM attempt WHERE slot IS NOT NULL") == 0
    answer = command(stack, id, BackfillPublishRequested()).body
    assert answer["type"] == "BackfillApproved"
    stack.wait_state(id, "succeeded")
    assert days(tmp_path) == written_by(stack, id)
    # A second wish changes nothing.
    assert command(stack, id, BackfillPublishRequested()).body["type"] == "BackfillApproved"
    stack.wait_published()
    told = [e.body for e in stack.events(Topic.RUN_EVENTS) if e.key == id]
    for run in {body["run_id"] for body in told}:
        types = [body["type"] for body in told if body["run_id"] == run and body["type"] != "TaskStateChanged"]
        assert types == ["RunStarted", "RunHeldForReview", "RunPublishing", "RunSucceeded"]
    of_backfill = [e.body for e in stack.events(Topic.BACKFILL_EVENTS) if e.key == id]
    (begun,) = [body for body in of_backfill if body["type"] == "BackfillInReview"]
    assert begun["runs"] == {"staged": 4}


WISHES = [BackfillDiscardRequested(), BackfillCancelRequested()]


@pytest.mark.parametrize("wish", some(WISHES, WISHES[0]), ids=lambda wish: wish.type)
def test_what_is_discarded_is_never_published_and_a_retry_of_it_is_reviewed_again(
    stack: Installation, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, wish: Message
) -> None:
    point_at(stack, monkeypatch)
    id = review(stack, finish_by="2999-01-01T00:00:00Z", budget={"failed_runs": 3})
    stack.wait_state(id, "in_review")
    assert command(stack, id, wish).body["type"] == "BackfillCancelling"
    stack.wait_state(id, "cancelled")
    assert stack.runs_by_state(id) == {"cancelled": 4}
    assert days(tmp_path) == written_by(stack, "before")
    assert "nothing to publish" in command(stack, id, BackfillPublishRequested()).body["message"]
    # The intervals are free again.
    again = cli("backfill", "retry", id, "--json").document["backfill_id"]
    watched = cli("backfill", "watch", again)
    assert watched.status == 3 and f"retrofill backfill publish {again}" in watched.err
    assert days(tmp_path) == written_by(stack, "before")
    assert cli("backfill", "show", again, "--json").document["budget"] == {"failed_runs": 3}
    assert cli("backfill", "publish", again, "--watch").status == 0
    assert days(tmp_path) == written_by(stack, again)


def test_some_days_are_published_and_the_others_wait_for_another_review(
    stack: Installation, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(stack, monkeypatch)
    id = review(stack)
    stack.wait_state(id, "in_review")
    before = days(tmp_path)
    refused = command(stack, id, BackfillPublishRequested(intervals=(date(2020, 1, 3), date(2021, 1, 1)))).body
    assert "no run of 2021-01-01" in refused["message"] and "nothing was published" in refused["message"]
    approved = cli("backfill", "publish", id, "--dates", "2020-01-01,2020-01-03", "--json").document
    assert (approved["type"], approved["runs"]) == ("BackfillApproved", 2)
    until(lambda: stack.runs_by_state(id) == {"succeeded": 2, "staged": 2}, "two are published")
    stack.wait_state(id, "in_review")
    mine = written_by(stack, id)
    published = {name: mine[name] for name in ("day=2020-01-01", "day=2020-01-03")}
    assert days(tmp_path) == {**before, **published}
    again = command(stack, id, BackfillPublishRequested(intervals=(date(2020, 1, 1),), review=1)).body
    assert "none of the runs that it names is staged" in again["message"]
    command(stack, id, BackfillDiscardRequested())
    stack.wait_state(id, "cancelled")
    assert (stack.runs_by_state(id), days(tmp_path)) == ({"succeeded": 2, "cancelled": 2}, {**before, **published})


CORRECTION = "corrected by hand"


def correct(out: Path, day: str) -> None:
    """Somebody changes a published day."""
    (part,) = out.glob(f"day={day}/part-*")
    part.write_text(CORRECTION)


def in_review_again(stack: Installation, out: Path) -> str:
    """A backfill that was approved while its second day was corrected, which is kept, while the others are published."""
    id = review(stack)
    stack.wait_state(id, "in_review")
    correct(out, "2020-01-02")
    assert command(stack, id, BackfillPublishRequested(review=0)).body["type"] == "BackfillApproved"
    until(lambda: stack.runs_by_state(id) == {"succeeded": 3, "staged": 1}, "the others are published")
    stack.wait_state(id, "in_review")
    assert days(out) == {**written_by(stack, id), "day=2020-01-02": CORRECTION}
    return id


# How the second review ends, and whether its day is replaced though it is corrected once more.
SECOND = {
    "published": (BackfillPublishRequested(review=1), False),
    "forced": (BackfillPublishRequested(force=True), True),
    "discarded": (BackfillDiscardRequested(), False),
    "cancelled": (BackfillCancelRequested(), False),
}


@pytest.mark.long
@pytest.mark.parametrize("end", some(SECOND, "published"))
def test_what_somebody_corrected_during_a_review_is_reviewed_again(
    stack: Installation, tmp_path: Path, end: str
) -> None:
    id = in_review_again(stack, tmp_path)
    (shown,) = stack.query("SELECT outputs->'changed' AS changed, review FROM run WHERE state = 'staged'")
    assert (shown["changed"], shown["review"]) == ([f"{tmp_path}/day=2020-01-02"], 1)
    stack.wait_published()
    first, again = [e.body for e in stack.events(Topic.BACKFILL_EVENTS) if e.body["type"] == "BackfillInReview"]
    assert (first["review"], first["changed"], again["review"], again["changed"]) == (0, 0, 1, 1)
    assert again["changed_intervals"] == ["2020-01-02T00:00:00Z"]
    # Who saw the first review only has not seen this one.
    refused = command(stack, id, BackfillPublishRequested(review=0)).body
    assert (refused["type"], "a new review has started" in refused["message"]) == (
        "BackfillCommandRejected",
        True,
    )
    wish, over = SECOND[end]
    if over:
        correct(tmp_path, "2020-01-02")
    command(stack, id, wish)
    ends = "cancelled" if end in ("discarded", "cancelled") else "succeeded"
    stack.wait_state(id, ends)
    kept = {"day=2020-01-02": CORRECTION} if ends == "cancelled" else {}
    assert days(tmp_path) == {**written_by(stack, id), **kept}
    assert stack.runs_by_state(id) == ({"succeeded": 3, "cancelled": 1} if kept else {"succeeded": 4})


@pytest.mark.long
def test_by_the_command_line(stack: Installation, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(stack, monkeypatch)
    assert (
        cli(
            *("backfill", "create", "p", "--from", "2020-01-01", "--to", "2020-01-02"),
            *("--reprocess", "completed", "--review", "--id", "c"),
        ).status
        == 0
    )
    refused = cli("backfill", "publish", "before")
    assert (refused.status, "did not ask for a review" in refused.err) == (1, True)
    for words in (["diff", "before"], ["discard", "before", "--yes"]):
        assert "did not ask for a review" in cli("backfill", *words).err
    stack.wait_state("c", "in_review")
    assert "in_review" in cli("backfill", "show", "c").out
    correct(tmp_path, "2020-01-02")
    # Watching goes on in the second review.
    assert cli("backfill", "publish", "c", "--json").document["type"] == "BackfillApproved"
    until(lambda: stack.runs_by_state("c") == {"succeeded": 1, "staged": 1}, "the other day is published")
    stack.wait_state("c", "in_review")
    shown = cli("backfill", "show", "c").out
    assert "somebody has changed what 1 of its runs would replace" in " ".join(shown.split())
    assert cli("backfill", "show", "c", "--json").document["changed_intervals"] == ["2020-01-02T00:00:00+00:00"]
    assert days(tmp_path)["day=2020-01-02"] == CORRECTION
    assert cli("backfill", "publish", "c", "--force", "--yes", "--watch").status == 0
    assert days(tmp_path) == written_by(stack, "c")
