"""Mutations of the planner."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from sqlalchemy import select, update

from backfill_planner import handler as planner
from retrofill_core.domain import planning as domain
from retrofill_core.domain.planning import History, Intervals
from retrofill_core.domain.run import Cover
from retrofill_core.store import backfills, planning
from retrofill_core.store.rows import Planned, columns_of
from retrofill_core.store.sql import database_now
from retrofill_core.store.tables import backfill, metadata
from retrofill_core.store.transition import FromNow
from tests.simulation import primitives
from tests.simulation.memory import tables as memory
from tests.simulation.mutations.patch import Patch


def ends_by_counting(patch: Patch) -> None:
    """A backfill is complete when the number of run end events equals its number of runs."""

    def ended() -> Counter[str]:
        process: Any = primitives.scheduler().me().process
        found: Counter[str] = process.__dict__.setdefault("ended", Counter())
        return found

    of_event = planner._ended

    def count(one: Any) -> Any:
        if type(one.message).__name__ in ("RunSucceeded", "RunFailed", "RunCancelled"):
            ended()[one.key] += 1
        return of_event(one)

    progress = backfills.progress

    def by_count(conn: Any, id: str) -> Any:
        runs = conn.execute(select(backfill.c.runs).where(backfill.c.id == id)).scalar_one()
        return replace(progress(conn, id), any_unfinished=ended()[id] < runs)

    patch(planner, "_ended", count)
    patch(backfills, "progress", by_count)
    patch(backfills, "to_be_decided", backfills.still_active)


def runs_in_a_transaction_of_their_own(patch: Patch) -> None:
    """The backfill is announced first; its runs are inserted afterwards."""
    insert_runs = planning.insert_runs
    waiting: list[Any] = []

    def later(conn: Any, /, *args: Any, **more: Any) -> None:
        waiting.append((args, more))

    def check(self: Any, tx: Any, keys: Any) -> None:
        mine, waiting[:] = list(waiting), []
        for args, more in mine:
            insert_runs(tx.conn, *args, **more)
        before(self, tx, keys)

    before = planner.PlannerHandler.check
    patch(planning, "insert_runs", later)
    patch(planner.PlannerHandler, "check", check)


def one_run_too_few(patch: Patch) -> None:
    """The first interval gets no run but is included in the backfill's run count."""
    insert_runs = planning.insert_runs

    def skip_first(conn: Any, id: str, no: int, made: Any, now: Any, **more: Any) -> None:
        skipped = ["already exists", *made.skipped[1:]]
        insert_runs(conn, id, no, replace(made, skipped=skipped), now, **more)

    patch(planning, "insert_runs", skip_first)


def requests_are_planned_again(patch: Patch) -> None:
    """A repeated request is planned again, and the newest reply replaces the first."""
    patch(backfills, "outcomes", lambda conn, ids: {})
    patch(backfills, "record_outcome", lambda conn, id, outcome: None)


def overlaps_are_not_looked_for(patch: Patch) -> None:
    """Neither the planner nor the constraint checks for overlapping active backfills."""
    history = planning.history

    def blind(conn: Any, no: int, intervals: Any) -> History:
        found = history(conn, no, intervals)
        return replace(found, overlapping=())

    patch(planning, "history", blind)
    patch(memory.NoOverlap, "clash", lambda self, one, other: False)
    _without(patch, "run_interval_unfinished_key")


def overlaps_are_left_to_the_constraint(patch: Patch) -> None:
    """The planner does not check for overlapping backfills; only the constraint refuses them."""
    history = planning.history
    patch(planning, "history", lambda *a: replace(history(*a), overlapping=()))


def hulls_are_compared(patch: Patch) -> None:
    """A request with gaps is refused for the sake of a backfill that only fills them."""
    history = planning.history

    def without_gaps(conn: Any, no: int, intervals: Intervals) -> History:
        hull = history(conn, no, Intervals([intervals.start], [intervals.end]))
        return replace(history(conn, no, intervals), overlapping=hull.overlapping)

    patch(planning, "history", without_gaps)


def intervals_are_compared_by_their_starts(patch: Patch) -> None:
    """An interval is done if a run succeeded that starts with it, whenever that ends."""

    def by_start(starts: Any, ends: Any, stretches: Any) -> Any:
        runs = {each.run.start: each.run for each in stretches}
        for start in starts:
            good = start in runs and runs[start].state == "succeeded"
            yield Cover(finished=start in runs, succeeded=good, some=good, by_others=False)

    patch(domain, "covers", by_start)


def ends_at_the_first_failure(patch: Patch) -> None:
    """A backfill fails as soon as one of its runs has failed."""
    progress = backfills.progress

    def hasty(conn: Any, id: str) -> Any:
        found = progress(conn, id)
        return replace(found, any_unfinished=found.any_unfinished and not found.any_failed)

    patch(backfills, "progress", hasty)
    patch(backfills, "to_be_decided", backfills.still_active)


def states_by_assignment(patch: Patch) -> None:
    """A backfill's state is set without checking its current state."""

    def assign(conn: Any, id: str, to: str, from_states: str, values: Any = None) -> bool:
        given = {name: database_now(conn) if value == FromNow() else value for name, value in (values or {}).items()}
        conn.execute(update(backfill).where(backfill.c.id == id).values(state=to, **given))
        return True

    def read(conn: Any, id: str, *, wait: bool) -> Any:
        row = conn.execute(select(*columns_of(Planned, backfill)).where(backfill.c.id == id)).first()
        return row and Planned(*row)

    patch(backfills, "move", assign)
    patch(backfills, "lock", read)


def _without(patch: Patch, constraint: str) -> None:
    if constraint not in {
        each.name for table in metadata.tables.values() for each in (table.constraints | table.indexes)
    }:
        raise AttributeError(f"no table has {constraint}: the mutation does not fit the code")
    violated = memory.Unique.clash

    def clash(self: Any, one: Any, other: Any) -> bool:
        return self.name != constraint and violated(self, one, other)

    patch(memory.Unique, "clash", clash)
