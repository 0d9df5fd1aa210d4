"""A receiver is down, for longer or shorter than the patience, and comes back: nothing is lost, and nobody floods it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from callback_runner.record import Claim
from retrofill_core.contract.topics import CALLBACK_RUNNER
from tests.simulation import steps
from tests.simulation.schedule import FIRST, run_until
from tests.simulation.shims import exchanged
from tests.simulation.world import ALL, World
from tests.support.definitions import alert

DAYS = 5
PATIENCE = 600.0
HOOK = {"kind": "webhook", "url": "https://ops.example/hook"}
# How long it is away, and then up and down again: seconds.
OUTAGES = {
    "seconds": [10.0],
    "minutes": [200.0],
    "most of the patience": [500.0],
    "again and again": [20.0, 3.0, 1.0, 40.0, 5.0],
}


@pytest.fixture(params=[False, True], ids=["answers 503", "hangs"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Two callback-runners, and a backfill of which all runs fail: a webhook and a function are called for each."""
    with exchanged():
        world = World(2)
        world.receivers_hang = request.param
        world.settings = world.settings.model_copy(update={"callback_patience_seconds": PATIENCE})
        world.services = ALL
        for service in (*ALL, CALLBACK_RUNNER):
            world.start(service)
        world.failing = {("p", FIRST + timedelta(days=n)) for n in range(DAYS)}
        lists: dict[str, Any] = {
            "on_run_failed": [{"callback": HOOK, "digest_seconds": 0}, {"callback": "page", "digest_seconds": 0}],
            "on_backfill_failed": [{"callback": HOOK}, {"callback": "page"}],
        }
        # Those of runs wait for nobody's turn.
        soon = alert("soon", "RUN_QUEUED_AT", 0.3, callback=HOOK)
        steps.apply(world, max_active_runs=2, deadlines=[soon], **lists)
        yield world
        world.close()


def called(world: World) -> list[tuple[str, int, float]]:
    """From now on: kind and id of each call, and when."""
    calls: list[tuple[str, int, float]] = []
    note = world.called

    def call(claim: Claim) -> None:
        calls.append((claim.kind, claim.deadline_id, world.scheduler.now))
        note(claim)

    world.called = call  # type: ignore[method-assign]
    return calls


def functions_are_over(world: World) -> bool:
    rows = [row for row in world.database.rows("callback") if row["kind"] == "function"]
    return len(rows) == DAYS + 1 and all(row["state"] == "succeeded" for row in rows)


@pytest.mark.parametrize("outage", OUTAGES)
def test_all_arrives_after_an_outage_and_nobody_else_waits(world: World, outage: str) -> None:
    calls = called(world)
    away = OUTAGES[outage]
    began = world.scheduler.now
    world.receivers_back_at = began + away[0]
    steps.ask(world, days=DAYS)
    run_until(world, lambda: functions_are_over(world))
    assert outage == "seconds" or world.scheduler.now - began < 120.0
    for up, down in zip(away[1::2], away[2::2], strict=True):
        back = world.receivers_back_at + up
        run_until(world, lambda back=back: world.scheduler.now >= back)  # type: ignore[misc]
        world.receivers_back_at = world.scheduler.now + down
    end = world.receivers_back_at
    run_until(world, lambda: world.scheduler.now >= end, 4 * PATIENCE)
    steps.drain(world)
    assert {row["state"] for row in world.database.rows("callback")} == {"succeeded"}
    assert not world.database.rows("receiver")
    meanwhile = [at for kind, _, at in calls if kind == "webhook" and at < end]
    # Those under way when it went down, then one at a time, each after twice as long, at last every minute.
    assert len(meanwhile) <= 2 * len(away) * 12 + (end - began) / 50.0


def test_what_waited_too_long_is_given_up_without_a_call_for_each(world: World) -> None:
    calls = called(world)
    world.receivers_back_at = world.scheduler.now + 3 * PATIENCE
    steps.ask(world, days=DAYS)
    end = world.receivers_back_at
    run_until(world, lambda: world.scheduler.now >= end, 4 * PATIENCE)
    rows = [row for row in world.database.rows("callback") if row["kind"] == "webhook"]
    assert {row["state"] for row in rows} == {"failed"}
    assert any("given up after 600 s (RETROFILL_CALLBACK_PATIENCE_SECONDS)" in row["last_error"] for row in rows)
    assert len([at for kind, _, at in calls if kind == "webhook"]) < 20 + PATIENCE / 50.0
    steps.drain(world)
