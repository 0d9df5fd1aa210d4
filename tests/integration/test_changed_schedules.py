"""After a change of a pipeline's schedule or zone: what counts as done, retries, undo, and what commands say of it.

The planner is real. Runs end by SQL where nothing depends on how they end.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation
from tests.support.servers import Servers
from tests.support.terminal import Cli, cli, point_at
from tests.support.tiers import some

from retrofill_core.contract.backfills import BackfillRequested, BackfillUndoRequested
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Topic

__all__ = ["cli"]
PIPELINE = """
from retrofill import Pipeline

p = Pipeline("p", schedule="{schedule}", start="2000-01-01", timezone="{zone}")

@p.task
def only(run): ...
"""


@pytest.fixture(scope="module")
def shared(servers: Servers) -> Iterator[Installation]:
    made = servers.installation()
    made.start("backfill-planner")
    yield made
    made.close()


@pytest.fixture
def planner(shared: Installation, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """A planner of all tests that use a pipeline of their own. The command line works on it."""
    point_at(shared, monkeypatch)
    return shared


@pytest.fixture
def stack(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """A planner of one test's own."""
    point_at(installation, monkeypatch)
    installation.start("backfill-planner")
    return installation


def answered(stack: Installation, id: str, message: Message) -> dict[str, Any]:
    return stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, id, message)).body


def ended(
    stack: Installation, id: str, first: str, last: str, state: str = "succeeded", *, pipeline: str = "p", **more: Any
) -> None:
    """A backfill whose runs ended in this state."""
    stack.request(pipeline, first, last, id=id, **more)
    assert stack.outcome(id).body["type"] == "BackfillPlanned", stack.outcome(id).body
    with stack.session() as conn:
        conn.execute("UPDATE retrofill.run SET state = %s, finished_at = now() WHERE backfill_id = %s", (state, id))
        conn.execute("UPDATE retrofill.backfill SET state = %s, ended_at = now() WHERE id = %s", (state, id))
        conn.commit()


def intervals_of(stack: Installation, id: str) -> int:
    return stack.value("SELECT count(*) FROM run WHERE backfill_id = %s", id)  # type: ignore[no-any-return]


def test_done_is_what_succeeded_runs_cover_whole(stack: Installation, cli: Cli) -> None:
    stack.apply(daily())
    ended(stack, "days", "2024-01-01", "2024-01-03")
    # Every hour of the three days is done, and those of the fourth are not.
    stack.apply(daily(schedule="@hourly"))
    stack.request("p", "2024-01-01", "2024-01-03", id="again")
    refused = stack.outcome("again").body
    assert (refused["reason"], "72 of them by runs of other intervals" in refused["message"]) == (
        "nothing_to_run",
        True,
    )
    arguments = ("p", "--from", "2024-01-03", "--to", "2024-01-04")
    foreseen = cli("backfill", "dry-run", *arguments).out
    assert "24 (2024-01-03) exist already, done by 1 run of other intervals, like 2024-01-03" in foreseen
    data = cli("backfill", "dry-run", *arguments, "--json").document
    assert (data["runs"], data["skipped"]) == (24, {"already exists": 24})
    assert [(each["intervals"], each["by"]["runs"]) for each in data["recognized"]] == [(24, 1)]
    planned = cli("backfill", "create", *arguments, "--id", "hours", "--json").document
    assert (planned["runs"], planned["recognized"], planned["partly_done"]) == (24, 24, 0)
    # A day of which one hour is left is planned whole, and that is said.
    with stack.session() as conn:
        conn.execute("UPDATE retrofill.run SET state = 'succeeded', finished_at = now() WHERE backfill_id = 'hours'")
        conn.execute("UPDATE retrofill.run SET state = 'failed' WHERE backfill_id = 'hours' AND position = 23")
        conn.execute("UPDATE retrofill.backfill SET state = 'failed', ended_at = now() WHERE id = 'hours'")
        conn.commit()
    stack.apply(daily())
    data = cli("backfill", "dry-run", *arguments, "--json").document
    assert (data["runs"], data["recognized"], [each["by"]["runs"] for each in data["partly_done"]]) == (1, [], [23])
    said = cli("backfill", "create", *arguments, "--id", "day").out
    assert "skipped: 1 already exists" in said
    assert "1 of the runs have intervals that runs of other intervals have done in part" in said
    # What was done is shown with its own intervals.
    shown = cli("intervals", "show", "p", "2024-01-04").out.splitlines()
    assert len([line for line in shown if "of backfill hours" in line]) == 24
    assert shown[0].startswith("2024-01-04 00:00 – 00:59: run ")
    one = cli("intervals", "show", "p", "2024-01-02T07:30:00Z", "--json").document
    assert [(each["interval_start"], each["interval_end"]) for each in one] == [
        ("2024-01-02T00:00:00+00:00", "2024-01-03T00:00:00+00:00")
    ]


@pytest.mark.parametrize(
    ("before", "now", "runs"),
    [
        pytest.param({}, {"schedule": "@hourly"}, 72, id="days to hours"),
        pytest.param({"schedule": "@hourly"}, {}, 3, id="hours to days"),
        pytest.param({}, {"timezone": "Europe/Berlin"}, 4, id="another zone"),
        pytest.param({}, {"schedule": "@weekly"}, 1, id="days to weeks"),
        pytest.param({"schedule": "@weekly"}, {"schedule": "@monthly"}, 2, id="weeks to months"),
        pytest.param({}, {"schedule": "30 6 * * *"}, 4, id="another time"),
        pytest.param({}, {"schedule": "0 0 * * *"}, 3, id="the same intervals"),
    ],
)
def test_a_retry_is_of_the_same_intervals_or_says_what_to_request(
    planner: Installation, cli: Cli, before: dict[str, Any], now: dict[str, Any], runs: int
) -> None:
    week = before.get("schedule") == "@weekly"
    first, last = ("2024-01-28", "2024-01-28") if week else ("2024-01-02", "2024-01-04")
    name = f"p{uuid.uuid4().hex}"
    planner.apply(daily(name, **before))
    ended(planner, f"{name}-1", first, last, "cancelled" if "timezone" in now else "failed", pipeline=name)
    planner.apply(daily(name, **now))
    answer = cli("backfill", "retry", f"{name}-1")
    if now == {"schedule": "0 0 * * *"}:
        assert (answer.status, answer.out.count(f"3 runs of {name}")) == (0, 1)
        return
    assert (answer.status, answer.err.count("\n")) == (1, 1)
    assert "request the intervals that it has there" in answer.err
    command = shlex.split(answer.err.split("'")[1])
    assert command[:3] == ["retrofill", "backfill", "create"]
    planned = cli(*command[1:], "--id", f"{name}-2", "--json").document
    assert planned["runs"] == runs
    with planner.session() as conn:
        left = conn.execute(
            "SELECT range_agg(tstzrange(interval_start, interval_end)) FILTER (WHERE backfill_id = %s)"
            " <@ range_agg(tstzrange(interval_start, interval_end)) FILTER (WHERE backfill_id = %s) FROM retrofill.run",
            [f"{name}-1", f"{name}-2"],
        ).fetchone()
    assert left == (True,), "all that was not done is requested"


def test_a_retry_leaves_out_what_hours_have_done_since(planner: Installation, cli: Cli) -> None:
    planner.apply(daily("since"))
    ended(planner, "failed", "2024-01-01", "2024-01-03", "failed", pipeline="since")
    planner.apply(daily("since", schedule="@hourly"))
    ended(planner, "hours-since", "2024-01-01", "2024-01-02", pipeline="since")
    ended(planner, "some-since", "2024-01-03T00:00:00Z", "2024-01-03T22:00:00Z", pipeline="since")
    planner.apply(daily("since"))
    again = cli("backfill", "retry", "failed", "--json").document
    assert (again["runs"], again["range_start"], again["partly_done"]) == (1, "2024-01-03T00:00:00Z", 1)


def test_the_schedule_may_change_after_the_request_was_made(planner: Installation) -> None:
    planner.apply(daily("changes", schedule="@hourly"))
    given = {"pipeline": "changes", "intervals": ["2024-01-01T00:00:00Z"], "interval_ends": ["2024-01-02T00:00:00Z"]}
    answer = answered(planner, "late", BackfillRequested.model_validate(given))
    assert (answer["reason"], "--from 2024-01-01 --to 2024-01-01" in answer["message"]) == ("schedule_changed", True)
    given["interval_ends"] = ["2024-01-01T01:00:00Z"]
    assert answered(planner, "in time", BackfillRequested.model_validate(given))["runs"] == 1


@pytest.mark.usefixtures("planner")
def test_apply_says_what_another_schedule_means(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "pipelines.py"

    def apply(schedule: str, zone: str = "UTC") -> str:
        file.write_text(PIPELINE.format(schedule=schedule, zone=zone))
        return cli("pipelines", "apply", str(file), "--in-place").out

    assert apply("@daily") == "p: applied\n"
    assert apply("0 0 * * *") == "p: applied\n"
    for said in (apply("@hourly"), apply("@hourly", "Europe/Berlin")):
        first, second, *more = said.splitlines()
        assert (first, more) == ("p: applied", [])
        assert "counts where succeeded runs cover a whole interval" in second
    assert "its schedule was @hourly (UTC)" in second


@pytest.mark.parametrize("elsewhere", some([False, True], False), ids=["the same place", "another place"])
def test_a_day_is_undone_unless_what_overlaps_it_was_published_there_since(
    stack: Installation, tmp_path: Path, elsewhere: bool
) -> None:
    stack.apply(daily(on_backfill_succeeded=[{"callback": "page"}]))
    first = stack.start("instant-starter", INSTANT_OUT=str(tmp_path / "days"))
    for id in ("before", "wrong"):
        stack.request("p", "2024-01-01", "2024-01-02", id=id, reprocess_behavior="completed")
        stack.wait_state(id, "succeeded")
    # In the same place, an hour may not replace the day that it is part of. A week may, from Monday, that begins with it.
    schedule, moment = ("@hourly", "2024-01-02T05:00:00Z") if elsewhere else ("0 0 * * 1", "2024-01-01T00:00:00Z")
    stack.apply(daily(schedule=schedule))
    first.stop()
    stack.start("instant-starter", INSTANT_OUT=str(tmp_path / ("hours" if elsewhere else "days")))
    stack.request("p", moment, moment, id="since", reprocess_behavior="completed")
    stack.wait_state("since", "succeeded")
    answer = answered(stack, "u1", BackfillUndoRequested(undoes="wrong"))
    assert (answer["runs"], answer["skipped"]) == ((2, {}) if elsewhere else (1, {"published again since": 1}))
    stack.wait_state("u1", "succeeded")
    if not elsewhere:
        # Once the week is undone, so is the day.
        answered(stack, "u2", BackfillUndoRequested(undoes="since"))
        stack.wait_state("u2", "succeeded")
        assert answered(stack, "u3", BackfillUndoRequested(undoes="wrong"))["runs"] == 1
        stack.wait_state("u3", "succeeded")
    runs = {row["id"]: row["interval_start"] for row in stack.query("SELECT * FROM run WHERE backfill_id = 'before'")}
    texts = {f"run {id}": f"day={start:%Y-%m-%d}" for id, start in runs.items()}
    found = {path.parent.name: path.read_text() for path in (tmp_path / "days").glob("day=*/part-*")}
    assert found == {folder: text for text, folder in texts.items()}
    # An undo is no news of success.
    stack.wait_published()
    called = stack.query("SELECT backfill_id FROM callback ORDER BY backfill_id")
    assert [row["backfill_id"] for row in called] == ["before", "wrong"]
