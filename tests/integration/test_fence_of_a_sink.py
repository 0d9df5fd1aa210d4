"""The documented fence for databases, on a real one: a late attempt changes nothing, whenever it wakes up."""

from __future__ import annotations

import runpy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from tests.support.installation import ROOT, Installation, until

JOB = runpy.run_path(str(ROOT / "examples" / "jobs" / "to_postgres.py"))
DAY = datetime(2024, 1, 1)
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s"


def attempt(id: int, number: int, day: datetime = DAY) -> Any:
    return SimpleNamespace(id=id, attempt=number, interval=SimpleNamespace(start=day))


@contextmanager
def database(installation: Installation) -> Iterator[str]:
    """The DSN of a schema of its own."""
    dsn = installation.settings.dsn_of("owner")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA sink")
        conn.execute("SET search_path = sink")
        conn.execute(JOB["TABLES"])
    yield psycopg.conninfo.make_conninfo(dsn, options="-c search_path=sink")


def rows(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as conn:
        return conn.execute("SELECT shop, amount FROM totals ORDER BY day, shop").fetchall()


def load(dsn: str, run: Any, *given: tuple[str, int]) -> None:
    with psycopg.connect(dsn) as conn:
        JOB["load"](conn, run, given)


@pytest.mark.parametrize(
    ("late", "later"),
    [
        (attempt(7, 1), attempt(7, 2)),
        (attempt(7, 3), attempt(8, 1)),
        (attempt(7, 30), attempt(1_000_000_000_007, 1)),
    ],
    ids=["next attempt", "a retry or a later backfill", "after a switch of Postgres"],
)
def test_a_late_attempt_changes_nothing(installation: Installation, late: Any, later: Any) -> None:
    with database(installation) as dsn:
        load(dsn, later, ("a", 1), ("b", 2))
        load(dsn, attempt(1, 1, datetime(2024, 1, 2)), ("a", 9))
        with pytest.raises(JOB["Overtaken"], match="2024-01-01"):
            load(dsn, late, ("a", 5), ("z", 5))
        assert rows(dsn) == [("a", 1), ("b", 2), ("a", 9)]
        load(dsn, later, ("b", 3))
        assert rows(dsn) == [("b", 3), ("a", 9)], "the same attempt may write again"


@pytest.mark.parametrize("there", [True, False], ids=["written before", "never written"])
@pytest.mark.parametrize("first", ["late", "later"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_of_two_at_once_the_later_one_wins(installation: Installation, there: bool, first: str, ends: str) -> None:
    """The second one waits for the first one's transaction, which commits or not."""
    late, later = attempt(7, 1), attempt(7, 2)
    with database(installation) as dsn, psycopg.connect(dsn) as one, psycopg.connect(dsn) as two:
        if there:
            load(dsn, attempt(3, 1), ("old", 0))
        pairs = [(late, ("late", 1)), (later, ("later", 2))]
        (run, row), (other, other_row) = pairs if first == "late" else pairs[::-1]
        JOB["load"](one, run, [row])
        refused: list[Exception] = []

        def second() -> None:
            try:
                JOB["load"](two, other, [other_row])
                two.commit()
            except JOB["Overtaken"] as e:
                refused.append(e)
                two.rollback()

        waiting = threading.Thread(target=second)
        waiting.start()
        until(lambda: installation.value(WAITS, two.info.backend_pid) == 1, "the second one waits")
        getattr(one, ends)()
        waiting.join(20)
        assert bool(refused) == (first == "later" and ends == "commit")
        expected = other_row if ends == "rollback" else ("later", 2)
        assert rows(dsn) == [expected]
