"""The driver pool, without Spark: assigning attempts, also to drivers that are about to be free, and
asking for each of their runs.
"""

from __future__ import annotations

import json
import queue
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.driver.pooled import World, launch, pids, world

from retrofill_core.settings import Settings
from run_starter.executors import Condition
from run_starter.executors.build import Dispatch
from run_starter.executors.command import Drivers, Interpreters

__all__ = ["world"]


def test_one_process_runs_one_after_the_other(world: World) -> None:
    pool = world.pool()
    pool.launch(launch(1))
    assert pool.hosted() == {1}
    assert world.host.ended()[:2] == (1, True)
    before = pids(pool)
    pool.launch(launch(2))
    assert world.host.ended()[:2] == (2, True)
    assert pids(pool) == before
    assert (pool.condition(), pool.hosted()) == (Condition(1), set())


@pytest.mark.parametrize(
    ("conf", "reported", "replaced"),
    [({}, True, False), ({"die": True}, False, True), ({"forks": "gone"}, False, True)],
    ids=["done", "killed", "lost"],
)
def test_a_launch_waits_for_a_driver_that_has_reported_its_end(
    world: World, conf: dict[str, Any], reported: bool, replaced: bool
) -> None:
    pool, go, note = world.pool(), world.folder / "go", world.folder / "pid"
    pool.launch(launch(1, until=str(go), **conf))
    assert world.host.asked.get(timeout=20) == 1
    before = pids(pool)
    pool.launch(launch(2, note=str(note)))
    assert (pool.hosted(), [each.key for each in pool.waiting()]) == ({1, 2}, [2])
    with pytest.raises(queue.Empty):
        world.host.asked.get(timeout=0.3)
    go.touch()
    assert world.host.ended()[:2] == (1, reported)
    assert world.host.ended()[:2] == (2, True)
    assert world.host.asked.get(timeout=20) == 2
    assert (pool.waiting(), pool.hosted()) == ([], set())
    assert ({int(note.read_text())} == before) == (not replaced)


def test_a_launch_that_waits_for_a_driver_to_be_done_can_be_ended(world: World) -> None:
    pool, go = world.pool(), world.folder / "go"
    pool.launch(launch(1, until=str(go)))
    assert world.host.asked.get(timeout=20) == 1
    pool.launch(launch(2))
    pool.end(2)
    assert world.host.ended() == (2, False, "ended before a driver was given it")
    assert pool.hosted() == {1}
    go.touch()
    assert world.host.ended()[:2] == (1, True)


def test_both_executors_share_the_seats(world: World) -> None:
    drivers = Drivers(Settings(home=world.folder))
    pool, submit = Condition(3, note="why"), Condition(1, submits=False, note="other")
    others: list[Any] = [SimpleNamespace(condition=lambda each=each: each) for each in (pool, submit)]
    dispatch = Dispatch(drivers, world.host, Interpreters(drivers), *others)
    assert dispatch.condition() == Condition(4, submits=False, note="why")


def test_who_did_not_report_is_told_as_such(world: World) -> None:
    pool = world.pool()
    pool.launch(launch(1, silent=True))
    assert world.host.ended()[:2] == (1, False)
    pool.launch(launch(2))
    assert world.host.ended()[:2] == (2, True)


def test_a_run_that_waits_for_a_process_can_be_ended(world: World) -> None:
    pool = world.pool((sys.executable, "-c", "import time; time.sleep(60)"))
    pool.launch(launch(1))
    pool.end(1)
    assert world.host.ended() == (1, False, "ended before a driver was given it")
    assert pool.hosted() == set()


def test_a_close_tells_of_every_run(world: World) -> None:
    pool = world.pool(driver_slots=2)
    pool.launch(launch(1, stuck=True))
    pool.launch(launch(2, stuck=True))
    pool.launch(launch(3))
    assert {world.host.asked.get(timeout=20) for _ in range(2)} == {1, 2}
    pool.close()
    assert {world.host.ended()[:2] for _ in range(3)} == {(1, False), (2, False), (3, False)}


# batches


def test_a_driver_asks_for_each_run_and_stops_where_one_must_not_begin(world: World) -> None:
    world.host.allowed = lambda run_id: run_id < 12
    pool = world.pool()
    pool.launch(launch(1, [10, 11, 12, 13]))
    assert world.host.ended()[:2] == (1, True)
    assert [world.host.asked.get(timeout=20) for _ in range(3)] == [10, 11, 12]
    assert world.host.asked.empty()
    assert (pool.condition(), pool.hosted()) == (Condition(1), set())


@pytest.mark.parametrize(
    ("conf", "begun"),
    [
        # Once it was allowed to begin that run.
        ({"die": 10}, 10),
        ({"die": 11}, 11),
        # Before it asked.
        ({"leave": 10}, None),
        ({"leave": 11}, 10),
        ({"leave": 12}, 11),
    ],
)
def test_the_last_run_that_a_lost_driver_was_allowed_to_begin_is_told(
    world: World, conf: dict[str, Any], begun: int | None
) -> None:
    pool = world.pool()
    pool.launch(launch(1, [10, 11, 12], **conf))
    assert world.host.ended() == (1, False, "the driver process was ended by signal 9")
    assert world.host.begun[1] == begun
    # Nothing of it is left to the next attempt.
    pool.launch(launch(2, [20], leave=20))
    assert world.host.ended()[:2] == (2, False)
    assert world.host.begun[2] is None


def test_a_run_that_must_not_begin_is_not_the_last_one_that_began(world: World) -> None:
    world.host.allowed = lambda run_id: run_id == 10
    world.pool().launch(launch(1, [10, 11], silent=True))
    assert world.host.ended()[:2] == (1, False)
    assert world.host.begun[1] == 10


def test_the_next_run_begins_while_the_output_of_the_last_one_waits_for_its_acceptance(world: World) -> None:
    pool, note = world.pool(), world.folder / "published"
    pool.launch(launch(1, [10, 11, 12], stages=str(note)))
    # Nothing is accepted yet.
    assert [world.host.asked.get(timeout=20) for _ in range(3)] == [10, 11, 12]
    assert not note.exists()
    world.host.accepts.set()
    assert world.host.ended()[:2] == (1, True)
    assert sorted(json.loads(note.read_text())) == [False, False, True]
