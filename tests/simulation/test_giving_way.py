"""A batch gives its seat or slot to another backfill that waits for it, and no more often than it must."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from retrofill_core.store import giving_way
from run_starter.executors import Condition
from tests.simulation.checks.base import Violation
from tests.simulation.executor import SimulatedExecutor
from tests.simulation.mutations import applied
from tests.simulation.schedule import run_until
from tests.simulation.test_seats import LONG, OTHER, SAME, apply, ask, claims, names, watched, world_of
from tests.simulation.world import World
from tests.support.tiers import some

SLICE = giving_way.SLICE.total_seconds()
# A run (two waits of half a lease of four seconds), its reports, and the claim of the seat.
RUN = 8.0
BATCH = {"batch_size": 200}
KINDS = ("pool", "spark-submit")


def begun(world: World, *backfills: str) -> int:
    return sum(row["attempt"] for row in world.database.rows("run") if row["backfill_id"] in backfills)


def works(world: World, *large: str) -> None:
    """Wait until all of these execute a batch."""
    run_until(world, lambda: all(begun(world, name) >= 2 for name in large))


def waited(world: World, small: Sequence[str]) -> float:
    """Seconds until all of these, requested now, have begun."""
    asked = world.scheduler.now
    run_until(world, lambda: all(begun(world, name) for name in small))
    return world.scheduler.now - asked


def ask_for_urgent(world: World, names: Sequence[str], pipeline: str = "") -> None:
    for name in names:
        ask(world, name, "2021-01-01", pipeline, "2021-01-01")


@pytest.mark.parametrize("shard", [SAME, OTHER])
@pytest.mark.parametrize(("seats", "starters", "count"), some([(1, 1, 1), (2, 1, 1), (2, 1, 2), (1, 2, 1)], (2, 1, 1)))
def test_a_batch_gives_its_seat_to_another_pipeline(seats: int, starters: int, count: int, shard: int) -> None:
    with world_of(0, seats=seats, starters=starters) as world:
        large, small = names(SAME, "large", count), names(shard, "small")
        for name in large:
            apply(world, name, **BATCH)
        apply(world, small[0])
        for name in large:
            ask(world, name, LONG)
        works(world, *large)
        ask_for_urgent(world, small)
        assert waited(world, small) <= SLICE + RUN
        # Its other runs go on.
        before = begun(world, *large)
        run_until(world, lambda: begun(world, *large) > before + 5)


@pytest.mark.parametrize("limit", some([1, 2], 2))
@pytest.mark.parametrize("shard", [SAME, OTHER])
def test_a_batch_gives_its_slot_to_another_backfill_of_the_pipeline(shard: int, limit: int) -> None:
    with world_of(0, seats=4) as world:
        (large,), small = names(SAME, "large"), names(shard, "small")
        apply(world, "p", max_active_runs=limit, **BATCH)
        ask(world, large, LONG, "p")
        works(world, large)
        ask_for_urgent(world, small, "p")
        assert waited(world, small) <= SLICE + RUN


@pytest.mark.parametrize(
    ("waiting", "executor"), some(product(KINDS, KINDS), ("spark-submit", "pool"), ("pool", "spark-submit"))
)
def test_drivers_of_either_kind_give_way_to_either(waiting: str, executor: str) -> None:
    with world_of(0, seats=1) as world:
        (large,), small = names(SAME, "large"), names(SAME, "small")
        apply(world, large, executor=executor, **BATCH)
        apply(world, small[0], executor=waiting)
        ask(world, large, LONG)
        works(world, large)
        ask_for_urgent(world, small)
        own = giving_way.SLICE_OF_SUBMIT.total_seconds() if executor == "spark-submit" else SLICE
        assert waited(world, small) <= own + RUN


@pytest.mark.long
@pytest.mark.parametrize("shard", some([SAME, OTHER], OTHER))
@pytest.mark.parametrize(("seats", "most"), some([(1, 60 / SLICE + 2), (2, 4), (3, 6)], (1, 60 / SLICE + 2)))
def test_batches_do_not_take_a_seat_from_each_other_again_and_again(seats: int, most: float, shard: int) -> None:
    with world_of(0, seats=seats) as world:
        large = [*names(SAME, "first"), *names(shard, "second")]
        for name in large:
            apply(world, name, **BATCH)
            ask(world, name, "2021-12-31")
        run_until(world, lambda: all(begun(world, name) for name in large))
        before, other = claims(world, large[0]), claims(world, large[1])
        made, _ = watched(world, large[0], 60.0)
        assert made + claims(world, large[1]) - other <= most
        if seats == 1:
            # They take turns.
            assert min(made, claims(world, large[1]) - other) >= 2
        assert claims(world, large[0]) == before + made


def test_no_batch_gives_way_to_who_cannot_use_its_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedExecutor, "condition", lambda me: Condition(me.slots - me.starting, submits=False))
    with world_of(0, seats=1) as world:
        (large,), (unable,) = names(SAME, "large"), names(OTHER, "unable")
        apply(world, large, **BATCH)
        apply(world, unable, executor="spark-submit")
        ask(world, large, LONG)
        works(world, large)
        ask(world, unable)
        assert watched(world, large, 60.0)[0] == 0


def test_what_a_batch_did_not_begin_is_no_part_of_it() -> None:
    with world_of(0, seats=1) as world:
        (large,), small = names(SAME, "large"), names(SAME, "small")
        apply(world, large, **BATCH)
        apply(world, small[0])
        ask(world, large, LONG)
        works(world, large)
        ask_for_urgent(world, small)
        waited(world, small)
        (first,) = [row for row in world.database.rows("attempt") if row["backfill_id"] == large and row["ended_at"]]
        mine = [row for row in world.database.rows("run") if row["attempt"] and row["attempt_id"] == first["id"]]
        assert first["runs"] == len(mine) < 180
        assert not any(row["losses"] for row in world.database.rows("run"))


@pytest.mark.parametrize("pipeline", ["", "p"])
def test_batches_that_keep_their_seats_are_found(pipeline: str) -> None:
    """In random schedules, which are short, nobody waits for a batch so long."""
    with applied("batches_keep_their_seats"), world_of(0, seats=1) as world:
        (large,), small = names(SAME, "large"), names(SAME, "small")
        for name in (large, *small, "p"):
            apply(world, name, max_active_runs=1, **BATCH)
        ask(world, large, LONG, pipeline)
        works(world, large)
        ask_for_urgent(world, small, pipeline)
        with pytest.raises(Violation, match="turns: attempt 1 begins another run"):
            waited(world, small)
