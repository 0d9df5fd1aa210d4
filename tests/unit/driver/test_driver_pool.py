"""The driver pool, without Spark: assigning attempts, also to drivers that are about to be free, and
asking for each of their runs.
"""

from __future__ import annotations

import json
import queue
import sys
from collections.abc import Collection
from typing import Any

import pytest
from tests.unit.driver.pooled import World, launch, pids, world

from run_starter.executors import Key
from run_starter.executors.build import Dispatch

__all__ = ["world"]


def test_one_process_runs_one_after_the_other_and_slots_are_counted(world: World) -> None:
    pool = world.pool()
    assert pool.free() == 1
    pool.launch(launch(1))
    assert (pool.free(), pool.hosted()) == (0, {1})
    assert world.host.ended()[:2] == (1, True)
    before = pids(pool)
    pool.launch(launch(2))
    assert world.host.ended()[:2] == (2, True)
    assert pids(pool) == before
    assert (pool.free(), pool.hosted()) == (1, set())


@pytest.mark.parametrize(
    ("settings", "conf", "reported", "replaced"),
    [
        ({}, {}, True, False),
        ({"driver_max_runs": 1}, {}, True, True),
        ({}, {"die": True}, False, True),
        ({}, {"forks": "gone"}, False, True),
    ],
    ids=["done", "done and retired", "killed", "lost"],
)
def test_a_driver_that_reported_its_end_counts_as_free_and_the_next_launch_waits_for_it(
    world: World, settings: dict[str, Any], conf: dict[str, Any], reported: bool, replaced: bool
) -> None:
    pool, go, note = world.pool(**settings), world.folder / "go", world.folder / "pid"
    pool.launch(launch(1, until=str(go), **conf))
    assert world.host.asked.get(timeout=20) == 1
    before = pids(pool)
    assert pool.free() == 0
    pool.ending({1, 7})
    assert (pool.free(), pool.hosted()) == (1, {1})
    pool.launch(launch(2, note=str(note)))
    assert (pool.free(), pool.hosted()) == (0, {1, 2})
    with pytest.raises(queue.Empty):
        world.host.asked.get(timeout=0.3)
    go.touch()
    assert world.host.ended()[:2] == (1, reported)
    assert world.host.ended()[:2] == (2, True)
    assert world.host.asked.get(timeout=20) == 2
    assert (pool.free(), pool.hosted()) == (1, set())
    assert ({int(note.read_text())} == before) == (not replaced)


def test_the_end_of_a_driver_that_is_not_here_frees_nothing(world: World) -> None:
    pool, go = world.pool(driver_slots=2), world.folder / "go"
    pool.ending({1})
    assert pool.free() == 2
    pool.launch(launch(1, until=str(go)))
    assert world.host.asked.get(timeout=20) == 1
    assert pool.free() == 1
    pool.ending({2})
    assert pool.free() == 1
    go.touch()
    assert world.host.ended()[:2] == (1, True)
    assert pool.free() == 2


def test_a_launch_that_waits_for_a_driver_to_be_done_can_be_ended(world: World) -> None:
    pool, go = world.pool(), world.folder / "go"
    pool.launch(launch(1, until=str(go)))
    assert world.host.asked.get(timeout=20) == 1
    pool.ending({1})
    pool.launch(launch(2))
    pool.end(2)
    assert world.host.ended() == (2, False, "ended before a driver was given it")
    assert pool.free() == 1
    go.touch()
    assert world.host.ended()[:2] == (1, True)


class Busy:
    """An executor with a number of free drivers."""

    def __init__(self, free: int) -> None:
        self.ended: set[Key] = set()
        self._free = free

    def free(self) -> int:
        return self._free + len(self.ended)

    def ending(self, keys: Collection[Key]) -> None:
        self.ended |= set(keys)


@pytest.mark.parametrize(("pool", "submit", "free"), [(4, 4, 4), (3, 4, 3), (1, 3, 0), (0, 4, 0), (4, 0, 0)])
def test_both_executors_share_the_slots(pool: int, submit: int, free: int) -> None:
    dispatch = object.__new__(Dispatch)
    dispatch._limit = 4
    dispatch._executors = {"pool": Busy(pool), "spark-submit": Busy(submit)}  # type: ignore[dict-item]
    assert dispatch.free() == free
    dispatch.ending({1})
    assert [each.ended for each in dispatch._executors.values()] == [{1}] * 2  # type: ignore[attr-defined]


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
    assert pool.free() == 1


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
    assert (pool.free(), pool.hosted()) == (1, set())


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
