"""The rows that progress is computed from, on the real Postgres and on the simulated one."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from tests.support.both_stores import (
    BASE,
    DAY,
    NOW,
    START,
    Both,
    begin,
    both,
    claim,
    finish,
    give,
    installation,
    make_backfill,
)
from tests.support.sessions import commit

from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, backfills, progress
from retrofill_core.store import tables as t

__all__ = ["both", "installation"]
LATER = NOW + timedelta(seconds=60)


def over(conn: Any, attempt: int, **cost: Any) -> None:
    """An attempt that began at ``NOW`` ends after ten seconds."""
    costs = dict.fromkeys(progress.COSTS) | cost
    values = {"ended_at": NOW + timedelta(seconds=10), **attempts.NOT_LIVE}
    attempts.move(conn, "ended", [{"id": attempt, "outcome": "done", "error": None, **costs}], values)


def one_run(conn: Any, id: int, slot: int = 1, state: str = RunState.SUCCEEDED, **cost: Any) -> None:
    attempt = claim(conn, slot, id)
    give(conn, attempt, id)
    begin(conn, attempt, id)
    finish(conn, id, attempt, state)
    over(conn, attempt, **cost)


def test_counts_costs_and_durations(both: Both) -> None:
    def measured(conn: Any) -> Any:
        return {id: asdict(each) for id, each in progress.measured(conn, {"b1": 1, "b2": 1}, LATER).items()}

    both.play(
        *BASE,
        ("a", lambda conn: make_backfill(conn, "b2", 2, START + 9 * DAY)),
        ("a", lambda conn: one_run(conn, 1, core_seconds=1.5, shuffle_bytes=10, rows_read=7)),
        ("a", lambda conn: one_run(conn, 2, core_seconds=2.5, shuffle_bytes=2**40)),
        ("a", lambda conn: give(conn, claim(conn, 1, 3), 3)),
        ("a", commit),
        ("b", lambda conn: progress.counts(conn, ["b1", "b2"])),
        ("b", lambda conn: progress.costs(conn, ["b1", "b2"])),
        ("b", measured),
        ("b", lambda conn: asdict(progress.history(conn, 1, LATER))),
    )


def test_what_was_announced(both: Both) -> None:
    new = [{"backfill_id": "b1", "sequence": 1, "runs": {"queued": 3}}]
    again = [{"backfill_id": "b1", "sequence": 2, "runs": {"queued": 2}}]
    both.play(
        *BASE,
        ("a", lambda conn: progress.announced(conn, ["b1", "b9"])),
        ("a", lambda conn: progress.put(conn, new)),
        ("a", lambda conn: progress.put(conn, again)),
        ("a", lambda conn: progress.announced(conn, ["b1"])),
        ("a", commit),
    )
    both.same_tables(t.backfill_progress)


def test_which_budgets_are_used_up(both: Both) -> None:
    def limit(**values: Any) -> Any:
        changed = t.backfill.update().where(t.backfill.c.id == "b1").values(**values)
        return ("a", lambda conn: conn.execute(changed) and None)

    decided = ("a", lambda conn: backfills.to_be_decided(conn, ["b1"]))
    said = both.play(
        *BASE,
        ("a", lambda conn: one_run(conn, 1, state=RunState.FAILED, core_seconds=3600.0)),
        limit(budget_failed_runs=2),
        decided,
        limit(budget_failed_runs=1),
        decided,
        limit(budget_failed_runs=None, budget_until=NOW + 9999 * DAY),
        decided,
        limit(budget_until=START),
        decided,
        limit(budget_until=None, budget_core_hours=1.0),
        # Only compared with the progress.
        decided,
        (
            "a",
            lambda conn: [
                backfills.budget_spent(conn, "b1").failed_runs,
                backfills.budget_spent(conn, "b1").core_seconds,
            ],
        ),
        ("a", commit),
    )
    assert [each for each in said if each in ([], ["b1"])][-5:] == [[], ["b1"], [], ["b1"], []]
    assert said[-2] == [1, 3600.0]
