"""Reports of drivers that become dead letters: nothing waits for ever, and the run says why it failed."""

from __future__ import annotations

from typing import Any

import pytest

from retrofill_core.contract.runs import (
    AttemptEnded,
    AttemptHeartbeat,
    Report,
    RunBaseChanged,
    RunBegan,
    RunPublicationPutOff,
    RunReport,
    RunReported,
    RunStaged,
    TaskReported,
)
from retrofill_core.contract.topics import Topic
from tests.simulation.schedule import FIRST, Scenario
from tests.simulation.servers import LOST, body_of
from tests.simulation.steps import apply, ask, drain, lose
from tests.simulation.world import World

# What the run is that the report was about: its own, and how it ends.
PLAIN, STAGING = 1, 2
OUTCOMES: dict[type[Report], dict[int, str]] = {
    RunBegan: {PLAIN: "failed", STAGING: "failed"},
    TaskReported: {PLAIN: "failed", STAGING: "failed"},
    RunStaged: {STAGING: "failed"},
    # Accepted output is published by another one.
    RunReported: {PLAIN: "failed", STAGING: "succeeded"},
    # It renews the lease all the same; the lease ends an attempt whose end is not known.
    AttemptHeartbeat: {PLAIN: "succeeded", STAGING: "succeeded"},
    AttemptEnded: {PLAIN: "succeeded", STAGING: "succeeded"},
    RunPublicationPutOff: {STAGING: "succeeded"},
    RunBaseChanged: {},  # it takes a review, and its run is publishing, as of a RunReported
}
CASES = [(kind, run) for kind, outcomes in OUTCOMES.items() for run in outcomes]


def lose_one(world: World, kind: type[Report], run: int) -> None:
    """The first report of this type about the run, or its attempt, becomes a dead letter."""

    def spoil(topic: str, headers: list[tuple[str, bytes | None]], value: bytes | None) -> bytes | None:
        body = body_of(value)
        if topic != Topic.RUN_REPORTS or body.get("type") != kind.__name__:
            return value
        if body.get("run_id", run) != run or world.lost:
            return value
        world.lost[(dict(headers)["ce_id"] or b"").decode()] = value or b""
        world.put_off = 0.0
        return LOST

    world.broker.spoil = spoil


def runs_of(world: World) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in world.database.rows("run")}


def test_every_type_of_report_is_in_the_table() -> None:
    def leaves(kind: type[Report]) -> set[type[Report]]:
        below = kind.__subclasses__()
        return {each for sub in below for each in leaves(sub)} if below else {kind}

    assert leaves(Report) == set(OUTCOMES)


@pytest.mark.parametrize("mode", ["each", "range"])
@pytest.mark.parametrize(("kind", "run"), CASES, ids=[f"{kind.__name__}-{run}" for kind, run in CASES])
def test_a_report_that_is_a_dead_letter(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type[Report], run: int, mode: str
) -> None:
    if mode == "range":
        # All of its runs do.
        monkeypatch.setattr(world, "stages", lambda _: run == STAGING)
    world.put_off = 1.0 if kind is RunPublicationPutOff else 0.0
    lose_one(world, kind, run)
    apply(world, batch_size=3, batch_mode=mode)
    ask(world, days=3, max_active_runs=1)
    drain(world, Scenario(world))
    if kind in (AttemptHeartbeat, RunPublicationPutOff) and not world.lost:
        pytest.skip("the drivers sent none")
    assert world.lost
    states = {id: row["state"] for id, row in runs_of(world).items()}
    # A range is divided, and its runs are tried again.
    expected = OUTCOMES[kind][run] if mode == "each" else "succeeded"
    assert states == dict.fromkeys((1, 2, 3), "succeeded") | {run: expected}
    if expected == "failed":
        error = runs_of(world)[run]["error"]
        assert error["type"] == "ReportRefused"
        assert kind.__name__ in error["message"]
        assert "dead letter (run-reports, partition " in error["message"]
    assert {row["lost_attempts"] for row in runs_of(world).values()} == {0}
    if issubclass(kind, RunReport) and expected == "failed":
        (letter,) = [entry for _, _, entry in world.broker.read(str(Topic.DEAD_LETTERS))]
        assert letter.value == LOST


@pytest.mark.parametrize("mode", ["each", "range"])
@pytest.mark.parametrize("leases", [1.5, 4.0])
def test_a_driver_whose_heartbeats_are_dead_letters_keeps_its_lease(world: World, leases: float, mode: str) -> None:
    """Kafka has acknowledged them, so it works on. It is not lost before the time of its run is over."""
    (seconds,) = set(world.leases)
    apply(world, run_timeout_seconds=leases * seconds, batch_size=3, batch_mode=mode)
    world.hanging = {("p", FIRST)}
    lose(world, "AttemptHeartbeat")
    ask(world, days=2)
    drain(world)
    assert len(world.lost) > leases
    failed, done = sorted(world.database.rows("run"), key=lambda row: row["position"])
    assert (failed["state"], failed["error"]["type"]) == ("failed", "RunTimedOut")
    assert (done["state"], done["lost_attempts"], failed["lost_attempts"]) == ("succeeded", 0, 0)
    assert "lost" not in {row["outcome"] for row in world.database.rows("attempt")}
