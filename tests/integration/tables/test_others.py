"""Runs of one table at the same time, and others who change it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.lake import Attempt, Lake, PublicationFailed

Change = Callable[[Lake], object]


def append(lake: Lake) -> None:
    """A foreign writer adds a row to the interval itself."""
    lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE '2013-01-01', 7, 'foreign')").collect()


def compact(lake: Lake) -> None:
    """The interval's files are replaced by others with the same rows."""
    if lake.format == "delta":
        lake.spark.sql(f"OPTIMIZE {lake.table}").collect()
        return
    options = "map('rewrite-all', 'true')"
    catalog, _, name = lake.table.partition(".")
    lake.spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => {options})").collect()


@pytest.mark.parametrize("change", [append, compact])
def test_a_change_between_the_look_and_the_commit_is_replaced(lake: Lake, change: Change) -> None:
    for note in ("before", "before, too"):
        lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE '2013-01-01', 1, '{note}')").collect()
    attempt = lake.attempt()
    attempt.stage(lake.table, "ours")
    asked = []

    def permitted() -> bool:
        asked.append(1)
        if len(asked) == 1:
            change(lake)
        return True

    attempt.ask = permitted
    attempt.publish()
    assert (lake.content(), lake.commits()) == (["1 ours"], 1)


def test_a_file_of_several_intervals_written_since_is_rewritten_or_refused(lake: Lake) -> None:
    table = lake.create(f"{lake.table}_mixed", partition="")
    attempt = lake.attempt()
    attempt.stage(table, "new")
    lake.spark.sql(
        f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES "
        "(DATE '2013-01-01', 1L, 'old'), (DATE '2013-01-02', 1L, 'other') AS t(day, n, note)"
    ).collect()
    if lake.format == "delta":
        attempt.publish()
        assert lake.content(table) == ["1 new", "2 other"]
    else:
        with pytest.raises(PublicationFailed, match="of which Iceberg cannot replace a part: partition it") as refused:
            attempt.publish()
        assert len(str(refused.value).splitlines()) == 1
        assert lake.content(table) == ["1 old", "2 other"]


@pytest.mark.long
def test_concurrent_runs_of_one_table_all_succeed_beside_a_foreign_writer(lake: Lake) -> None:
    attempts = [lake.attempt(run_id=day, day=day) for day in range(1, 5)]
    for day, attempt in enumerate(attempts, 1):
        attempt.stage(lake.table, f"run {day}", day=f"2013-01-{day:02}")

    def insert() -> None:
        for n in range(3):
            lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE '2013-01-09', {n}, 'foreign')").collect()

    with ThreadPoolExecutor() as threads:
        done: list[Future[Any]] = [
            threads.submit(insert),
            *(threads.submit(Attempt.publish, attempt) for attempt in attempts),
        ]
    for each in done:
        each.result()
    assert lake.content() == ["1 run 1", "2 run 2", "3 run 3", "4 run 4", *["9 foreign"] * 3]
    assert lake.staged() == []
