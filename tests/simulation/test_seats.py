"""Seats go round: no backfill waits for the end of others, and no seat for who cannot use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from retrofill_core.contract.backfills import BackfillRequested, RunRetryRequested
from retrofill_core.contract.pipelines import PipelineApplied
from retrofill_core.contract.topics import PLANNER, RUN_STARTER, Topic, partition_of
from run_starter.claims.starting import Starting
from run_starter.executors import Condition
from tests.simulation import sizes
from tests.simulation.drivers import Driver
from tests.simulation.executor import SimulatedExecutor
from tests.simulation.schedule import run_until
from tests.simulation.shims import exchanged
from tests.simulation.world import World
from tests.support.definitions import daily
from tests.support.tiers import some

# Of large backfills, until all small ones have started: a few of their at least 30 runs.
MOST_CLAIMS = 10
FIRST, LONG = "2020-01-01", "2020-06-30"
SAME, OTHER = 0, 1  # shards, of two
SAMPLE_SECONDS = 0.2


@contextmanager
def world_of(seed: int, *, seats: int, starters: int = 1) -> Iterator[World]:
    """A planner and run-starters with so many seats each, over two shards."""
    with exchanged(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "choose", lambda _: replace(sizes.SMALL, partitions=(2,), lease_seconds=(4.0,)))
        world = World(seed)
        try:
            world.services = (PLANNER, RUN_STARTER)
            world.start_seconds = 0.2
            world.settings = world.settings.model_copy(update={"driver_slots": seats})
            world.start(PLANNER)
            for _ in range(starters):
                world.start(RUN_STARTER)
            yield world
        finally:
            world.close()


def names(shard: int, prefix: str, count: int = 1) -> list[str]:
    """So many ids in a shard."""
    found = (name for n in range(100) if partition_of(name := f"{prefix}{n}", 2) == shard)
    return [next(found) for _ in range(count)]


def apply(world: World, name: str, **more: Any) -> None:
    """A pipeline that may have every driver."""
    definition = daily(name, **{"max_active_runs": 8, **more})
    world.publish(Topic.PIPELINES, name, PipelineApplied(pipeline=definition))


def ask(world: World, id: str, last: str = FIRST, pipeline: str = "", first: str = FIRST) -> None:
    """Ask for the days from ``first`` to ``last``, of the pipeline of that name, and wait for the plan."""
    asked = {"pipeline": pipeline or id, "from": first, "to": last}
    world.publish(Topic.BACKFILL_REQUESTS, id, BackfillRequested.model_validate(asked))
    run_until(world, lambda: any(row["id"] == id for row in world.database.rows("backfill")))


def claims(world: World, *backfills: str) -> int:
    return sum(row["backfill_id"] in backfills for row in world.database.rows("attempt"))


def claims_until(world: World, large: Sequence[str], small: Sequence[str]) -> int:
    """Claims of the large backfills until the small ones, requested now, have started."""
    for name in small:
        ask(world, name)
    before = claims(world, *large)
    run_until(world, lambda: all(claims(world, name) for name in small))
    return claims(world, *large) - before


def watched(world: World, large: str, seconds: float = 40.0) -> tuple[int, float]:
    """Claims of a large backfill in so many seconds, and how many seats were free meanwhile, in the mean."""
    before, began, free = claims(world, large), world.scheduler.now, list[int]()

    def over() -> bool:
        if world.scheduler.now >= began + len(free) * SAMPLE_SECONDS:
            free.append(sum(row["attempt_id"] is None and row["warm"] for row in world.database.rows("seat")))
        return world.scheduler.now >= began + seconds

    run_until(world, over)
    return claims(world, large) - before, sum(free) / len(free)


@pytest.mark.parametrize("shard", [SAME, OTHER])
@pytest.mark.parametrize(
    ("seats", "starters", "count"), some([(1, 1, 1), (2, 1, 1), (2, 1, 2), (1, 2, 1), (2, 2, 4)], (1, 1, 1), (1, 2, 1))
)
def test_small_backfills_start_long_before_large_ones_end(seats: int, starters: int, count: int, shard: int) -> None:
    with world_of(0, seats=seats, starters=starters) as world:
        large, small = names(SAME, "large", count), names(shard, "small", 3)
        for name in (*large, *small):
            apply(world, name)
        for name in large:
            ask(world, name, LONG)
        run_until(
            world, lambda: claims(world, *large) > seats * starters and all(claims(world, name) for name in large)
        )
        assert claims_until(world, large, small) <= MOST_CLAIMS


@pytest.mark.parametrize("seed", range(3))
def test_one_that_waits_is_not_passed_by_a_crowd_of_later_ones(seed: int) -> None:
    with world_of(seed, seats=2) as world:
        first, (early,), crowd = names(OTHER, "first", 2), names(SAME, "early"), names(OTHER, "crowd", 16)
        for name in (*first, early, *crowd):
            apply(world, name)
        for name in first:
            ask(world, name, "2020-01-03")
        run_until(world, lambda: all(claims(world, name) for name in first))
        ask(world, early)
        assert claims_until(world, crowd, [early]) == 0
        for name in crowd:
            ask(world, name)
        run_until(world, lambda: claims(world, early) == 1)
        assert claims(world, *crowd) <= MOST_CLAIMS


@pytest.mark.long
def test_large_backfills_of_two_shards_use_every_seat() -> None:
    with world_of(0, seats=3) as world:
        large = [*names(SAME, "large"), *names(OTHER, "large")]
        for name in large:
            apply(world, name)
        for name in large:
            ask(world, name, LONG)
        run_until(world, lambda: all(claims(world, name) >= 2 for name in large))
        before = claims(world, large[1])
        first, free = watched(world, large[0])
        assert free < 0.2
        assert first < 3 * (claims(world, large[1]) - before) < 9 * first


@pytest.mark.parametrize("shard", [SAME, OTHER])
def test_retried_runs_take_turns_with_others_of_their_pipeline(shard: int) -> None:
    with world_of(0, seats=2) as world:
        (again,), (small,) = names(SAME, "again"), names(shard, "small")
        apply(world, "p", max_active_runs=1)
        ask(world, again, LONG, "p")
        world.failing = {("p", run["interval_start"]) for run in world.database.rows("run")}
        run_until(world, lambda: states(world, again).count("failed") >= 14)
        world.failing = set()
        world.publish(Topic.BACKFILL_REQUESTS, again, RunRetryRequested(all_failed=True))
        run_until(world, lambda: "failed" not in states(world, again))
        ask(world, small, "2021-01-05", "p", "2021-01-01")
        before = claims(world, again)
        run_until(world, lambda: claims(world, small) >= 5)
        assert claims(world, again) - before <= MOST_CLAIMS


@pytest.mark.parametrize(("crowded", "alone"), some([(SAME, OTHER), (OTHER, SAME)], (SAME, OTHER)))
def test_a_crowd_in_one_shard_hides_no_backfill_of_another(crowded: int, alone: int) -> None:
    with world_of(0, seats=2) as world:
        crowd, (small,) = names(crowded, "crowd", 30), names(alone, "small")
        apply(world, "p", max_active_runs=1)
        for n, name in enumerate(crowd):
            month = f"{2010 + n // 12}-{n % 12 + 1:02}"
            ask(world, name, f"{month}-20", "p", f"{month}-01")
        ask(world, small, "2021-01-05", "p", "2021-01-01")
        before = claims(world, *crowd)
        run_until(world, lambda: claims(world, small) >= 1)
        assert claims(world, *crowd) - before <= len(crowd)


def states(world: World, backfill: str) -> list[str]:
    """Of the runs that no retry replaced."""
    rows = world.database.rows("run")
    return [row["state"] for row in rows if row["backfill_id"] == backfill and row["superseded_by"] is None]


def drivers_leave(patch: pytest.MonkeyPatch) -> None:
    """No driver of spark-submit stays: its seat is cold until its host makes it warm."""
    end = Driver._end

    def ends(driver: Driver) -> Any:
        stays = driver.launch.pipeline.executor != "spark-submit"
        return end(driver).model_copy(update={} if stays else {"stays": False})

    patch.setattr(Driver, "_end", ends)


@pytest.mark.parametrize("seed", range(3))
def test_who_needs_a_warm_driver_gets_one_beside_spark_submit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers_leave(monkeypatch)
    with world_of(seed, seats=2) as world:
        (large,), small = names(SAME, "large"), names(SAME, "small")
        apply(world, large, executor="spark-submit")
        apply(world, small[0])
        ask(world, large, LONG)
        run_until(world, lambda: claims(world, large) >= 4)
        assert claims_until(world, [large], small) <= MOST_CLAIMS


@pytest.mark.long
def test_no_seat_is_kept_for_who_cannot_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedExecutor, "condition", lambda me: Condition(me.slots - me.starting, submits=False))
    with world_of(0, seats=3) as world:
        (unable,), (large,), (steady,) = names(SAME, "unable"), names(OTHER, "large"), names(OTHER, "steady")
        apply(world, unable, executor="spark-submit")
        apply(world, large)
        apply(world, steady, max_active_runs=1)
        ask(world, unable)
        for name in (steady, large):
            ask(world, name, LONG)
        run_until(world, lambda: claims(world, large) >= 2)
        assert watched(world, large)[1] < 0.4


@pytest.mark.parametrize("shard", [SAME, OTHER])
def test_who_cannot_use_a_seat_does_not_hide_others(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedExecutor, "condition", lambda me: Condition(me.slots - me.starting, submits=False))
    with world_of(0, seats=2) as world:
        (unable,), small, (large,) = names(SAME, "unable"), names(SAME, "small"), names(shard, "large")
        apply(world, unable, executor="spark-submit")
        for name in (large, *small):
            apply(world, name)
        ask(world, unable)
        ask(world, large, LONG)
        # By then, the other shard has left it a seat in vain.
        run_until(world, lambda: claims(world, large) > 20)
        assert claims_until(world, [large], small) <= MOST_CLAIMS


def test_no_slot_is_kept_for_a_pool_that_nobody_serves() -> None:
    with world_of(0, seats=2) as world:
        (unserved,), (large,) = names(SAME, "unserved"), names(OTHER, "large")
        apply(world, "p", pool="other", max_active_runs=2)
        ask(world, unserved, "2019-01-01", "p", "2019-01-01")
        apply(world, "p", pool="default", max_active_runs=2)
        run_until(world, lambda: world.database.rows("pipeline")[0]["definition"]["pool"] == "default")
        ask(world, large, LONG, "p")
        run_until(world, lambda: claims(world, large) >= 2)
        assert watched(world, large)[1] < 0.4


def test_a_backfill_whose_claim_raises_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    start, raised = Starting.start, []

    def starts(me: Starting, tx: Any, wanted: Sequence[Any]) -> None:
        if any(each.backfill.id.startswith("bad") for each in wanted):
            raised.append(wanted)
            raise RuntimeError("a bug with this backfill")
        start(me, tx, wanted)

    monkeypatch.setattr(Starting, "start", starts)
    with world_of(0, seats=2) as world:
        world.has_bugs = True
        (large,), bad = names(SAME, "large"), names(SAME, "bad", 4)
        for name in (large, *bad):
            apply(world, name)
        ask(world, large, LONG)
        run_until(world, lambda: claims(world, large) >= 2)
        alone, _ = watched(world, large)
        for name in bad:
            ask(world, name)
        beside, _ = watched(world, large)
        assert raised
        assert beside > alone / 2
