"""Plays scripts on the simulated store and the real Postgres, which must return the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from retrofill.states import AttemptState
from retrofill_core.domain.backfill import ReprocessBehavior
from retrofill_core.domain.planning import History, Intervals, Plan, Span, find_intervals, plan
from retrofill_core.domain.run import RunState
from retrofill_core.store import attempts, hosts, pipelines, planning, runs
from retrofill_core.store import tables as t
from retrofill_core.store.engine import make_engine
from retrofill_core.store.sql import database_now
from retrofill_core.store.transition import IfNull, Plus
from tests.support.definitions import daily
from tests.support.installation import Installation
from tests.support.servers import Servers
from tests.support.sessions import MemoryStore, RealStore, Step, commit, fields

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
START = datetime(2020, 1, 1, tzinfo=UTC)


class Both:
    """Plays scripts on both stores and compares the results."""

    def __init__(self, installation: Installation) -> None:
        self.engine = make_engine(installation.settings.dsn_of("owner"), "conformance", pool_size=5)
        self.real, self.memory = RealStore(self.engine), MemoryStore()

    def play(self, *steps: Step) -> list[Any]:
        """Play on both stores, which must return the same. Returns the results."""
        real, memory = self.real.play(steps), self.memory.play(steps)
        assert memory == real
        return real

    def same_tables(self, *tables: Any) -> None:
        """Assert that both stores have the same committed rows."""
        for table in tables:
            rows: list[Callable[[Any], Any]] = [
                lambda conn, table=table: sorted(  # type: ignore[misc]
                    ([fields(each) for each in row] for row in conn.execute(select(table)).all()), key=repr
                )
            ]
            self.play(("look", rows[0]))


@pytest.fixture(scope="module")
def installation(servers: Servers) -> Iterator[Installation]:
    """Shared by all of these tests; each starts with empty tables."""
    made = servers.installation()
    yield made
    made.close()


@pytest.fixture
def both(installation: Installation) -> Iterator[Both]:
    made = Both(installation)
    with made.engine.begin() as conn:
        names = ", ".join(f"retrofill.{name.name}" for name in t.metadata.sorted_tables if name is not t.installation)
        conn.execute(text(f"TRUNCATE {names} RESTART IDENTITY"))
    yield made
    made.engine.dispose()


def put(name: str = "p", **more: Any) -> Step:
    return ("a", lambda conn: pipelines.put(conn, daily(name, **more)))


def plan_of(days: int, first: datetime = START) -> Plan:
    return planned([(first, first + (days - 1) * DAY)])


def planned(asked: Sequence[Span]) -> Plan:
    """The plan of a daily pipeline for these ranges of dates."""
    found = find_intervals(daily(), asked, 1000)
    assert isinstance(found, Intervals)
    made = plan(daily(), found, History(), ReprocessBehavior.COMPLETED, NOW)
    assert isinstance(made, Plan)
    return made


def make_backfill(
    conn: Any,
    id: str,
    days: int = 3,
    first: datetime = START,
    pipeline: int = 1,
    on_run_failure: str = "continue",
    executor: str = "pool",
    pool: str = "default",
    made: Plan | None = None,
) -> int:
    made = made or plan_of(days, first)
    values = {
        "id": id,
        "pipeline_no": pipeline,
        "pipeline": "p",
        "shard": 0,
        "max_active_runs": 2,
        "reprocess_behavior": "none",
        "run_backwards": False,
        "on_run_failure": on_run_failure,
        "conf": {"a": [1, None]},
        "triggered_by": None,
        "definition": daily(executor=executor, pool=pool).as_json(),
        "traceparent": None,
    }
    planning.insert_backfill(conn, values, made)
    planning.insert_runs(conn, id, pipeline, made, NOW, backwards=False)
    return made.runs


def claim(conn: Any, slot: int, first: int = 1, count: int = 1, mode: str = "each", backfill: str = "b1") -> int:
    """A new attempt in this slot; returns its id. ``first``: of the runs of the first backfill."""
    host = register(conn)
    new = attempts.NewAttempt(backfill, 1, mode, first - 1, count, slot, slot, {"file": "/p.py"}, "h", host, 1)
    return attempts.insert_all(conn, [new], [host], NOW, 30.0)[0]


def register(conn: Any, seats: int = 1, seconds: float = 3600.0, pool: str = "default") -> int:
    """A new host; returns its id."""
    return hosts.register(conn, "h", seats, seconds, submits=False, note=None, pool=pool)


def give(conn: Any, attempt: int, *ids: int, to: str = RunState.STARTING, before: str = RunState.QUEUED) -> int:
    """Give the attempt these runs."""
    return runs.move(conn, to, [{"id": id, "attempt_id": attempt} for id in ids], {}, [before], guard=())


def start(conn: Any, id: int, slot: int) -> int:
    """An attempt in this slot, with one run if that is still waiting; returns whether it is."""
    return give(conn, claim(conn, slot, id), id)


def begin(conn: Any, attempt: int, *ids: int) -> tuple[int, int]:
    """The attempt begins with these runs."""
    values = {"attempt": Plus(1), "started_at": IfNull(NOW)}
    given = [{"id": id, "attempt_id": attempt} for id in ids]
    begun = attempts.move(conn, AttemptState.RUNNING, [{"id": attempt}], {"began_at": NOW})
    return begun, runs.move(conn, RunState.RUNNING, given, values, [RunState.STARTING])


def accept(conn: Any, attempt: int, id: int) -> int:
    given = [{"id": id, "attempt_id": attempt, "outputs": {"folders": ["/o"]}, "accepted_attempt": attempt}]
    return runs.move(conn, RunState.PUBLISHING, given, {}, [RunState.RUNNING])


def leave(conn: Any, attempt: int, *ids: int, to: str = RunState.QUEUED) -> int:
    """The attempt loses these runs."""
    given = [{"id": id, "attempt_id": attempt, "lost_attempts": 1, "losses": {"last": [{"x": 1}]}} for id in ids]
    return runs.move(conn, to, given, {})


def over(conn: Any, attempt: int, outcome: str = "done", error: Any = None) -> int:
    """The attempt ends."""
    given = [{"id": attempt, "outcome": outcome, "error": error}]
    return attempts.move(conn, AttemptState.ENDED, given, {"ended_at": NOW, **attempts.NOT_LIVE})


def finish(conn: Any, id: int, attempt: int | None = None, state: str = RunState.SUCCEEDED) -> int:
    """A run ends, whose attempt goes on."""
    return runs.move(conn, state, [{"id": id, "attempt_id": attempt or id}], {"finished_at": NOW})


def end(conn: Any, id: int, attempt: int | None = None, state: str = RunState.SUCCEEDED) -> tuple[int, int]:
    """The only run of an attempt ends, and the attempt. Without its id, both have the same."""
    return finish(conn, id, attempt, state), over(conn, attempt or id)


def renew(conn: Any, attempt: int, seconds: float) -> None:
    """Let the lease of an attempt end in so many seconds, by the store's own clock."""
    attempts.extend_leases(conn, {attempt: database_now(conn) + timedelta(seconds=seconds)})


def lease_left(conn: Any, attempt: int, id: int | None = None) -> float | None:
    """In tens of seconds, because the stores read it at different times; at most an hour."""
    left = attempts.lease_left(conn, attempt, id or attempt)
    return None if left is None else round(max(-3600.0, min(left, 3600.0)) / 10)


def lock_run(id: int, **how: Any) -> Callable[[Any], Any]:
    return lambda conn: conn.execute(
        select(t.run.c.id, t.run.c.state).where(t.run.c.id == id).with_for_update(**how)
    ).all()


BASE: list[Step] = [put(), ("a", lambda conn: make_backfill(conn, "b1")), ("a", commit)]
