"""A run that was retried is shown as the new one, and each of both with its own attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, update
from tests.support.both_stores import DAY, START, begin, claim, end, give, make_backfill, put, start
from tests.support.sessions import MemoryStore

from retrofill.errors import UserError
from retrofill_core.domain.run import RunState
from retrofill_core.store import run_commands
from retrofill_core.store import tables as t
from retrofill_core.store.rows import present
from retrofill_core.store.sql import database_now
from retrofill_tools.cli.one_run import find_attempt
from retrofill_tools.client.attempts import live_attempts
from retrofill_tools.client.backfills import active_backfills
from retrofill_tools.client.runs import Run, attempts_of, find_run, runs_of_dates


def retried(look: Callable[[Connection, Run, Run], Any], *, begun: bool = True) -> Any:
    """What is seen after run 1 failed in attempt 1 and run 4 replaced it, begun in attempt 2 or not."""

    def work(conn: Any) -> Any:
        make_backfill(conn, "b1")
        start(conn, 1, 1)
        begin(conn, 1, 1)
        end(conn, 1, state=RunState.FAILED)
        conn.execute(update(t.run).where(t.run.c.id == 1).values(finished_at=database_now(conn)))
        run_commands.replace_failed(
            conn, run_commands.failed_runs(conn, "b1", None, after=-1, most=9), database_now(conn)
        )
        if begun:
            give(conn, claim(conn, 1, 1), 4)
        return look(conn, present(find_run(conn, 1)), present(find_run(conn, 4)))

    return MemoryStore().play([put(), ("a", work)])[-1]


def test_a_date_is_the_new_run() -> None:
    assert retried(lambda conn, _old, _new: runs_of_dates(conn, "b1", START, START + DAY)) == [4]


def test_each_has_its_own_attempts() -> None:
    def ids(conn: Connection, *runs: Run) -> list[list[int]]:
        return [[each.id for each in attempts_of(conn, run)] for run in runs]

    assert retried(ids) == [[1], [2]]
    assert retried(ids, begun=False) == [[1], []]


def test_a_live_attempt_is_listed_once() -> None:
    assert retried(lambda conn, _old, _new: [each.id for each in live_attempts(conn, 9)]) == [2]


def test_what_is_active_counts_only_the_new_one() -> None:
    said = retried(lambda conn, _old, _new: active_backfills(conn, 9)[0].by_state, begun=False)
    assert said == {"queued": 3}


def test_the_log_of_the_old_one_is_not_that_of_the_new_one() -> None:
    def named(conn: Connection, *_runs: Run) -> str:
        with pytest.raises(UserError) as refused:
            find_attempt(conn, "4", None)
        return str(refused.value)

    assert retried(named, begun=False) == "run 4 is queued: no driver has been given it yet"
