"""Commits of a script to an Iceberg table by its own name, which ``spark.wap.branch`` redirects: what is published of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.lake import Attempt, Lake, Publisher
from tests.support.tiers import some

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.sdk.texts import BRANCH, Table

Writes = Callable[["Script", str], object]
OLD = ["1 old", "2 old", "3 old"]
DAY_2 = "DATE '2013-01-02' AS day"


class Script:
    """A Spark of a script's own, which has the setting that its task gets."""

    def __init__(self, lake: Lake, session: Any) -> None:
        self._lake = lake
        self.spark = session

    def run(self, attempt: Attempt, writes: Writes, **more: Any) -> str:
        """Run a script, of which ``writes`` is all. Returns the branch."""
        table = Table(self._lake.table, "day", redirected=True, **more)
        branch = attempt.staging.tables.redirect("a", attempt.spark, table)
        self.spark.conf.set(BRANCH, branch)
        self.spark.sql(f"REFRESH TABLE {self._lake.table}").collect()
        writes(self, self._lake.table)
        return branch

    def sql(self, statement: str) -> object:
        return self.spark.sql(statement).collect()


@pytest.fixture
def lake(table_server: str, tmp_path: Path) -> Iterator[Lake]:
    """An audited table with a row of each of three days."""
    with Lake(table_server, "iceberg", tmp_path) as made:
        audited(made)
        rows = ", ".join(f"(DATE '2013-01-0{day}', {day}, 'old')" for day in (1, 2, 3))
        made.spark.sql(f"INSERT INTO {made.table} VALUES {rows}").collect()
        yield made


@pytest.fixture
def script(lake: Lake, table_server: str) -> Iterator[Script]:
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(table_server).create()
    yield Script(lake, session)
    session.stop()


def audited(lake: Lake, **more: str) -> None:
    properties = {"write.wap.enabled": "true", **more}
    given = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    lake.spark.sql(f"ALTER TABLE {lake.table} SET TBLPROPERTIES ({given})").collect()


def stage(attempt: Attempt) -> None:
    attempt.staging.tables.take_back("a", attempt.spark)
    attempt.outputs = attempt.staging.seal()


def finish(lake: Lake, attempt: Attempt) -> list[str]:
    before = lake.content()
    stage(attempt)
    assert lake.content() == before
    attempt.publish()
    return lake.content()


def branches(lake: Lake) -> list[str]:
    """Those that scripts have left."""
    lake.spark.sql(f"REFRESH TABLE {lake.table}").collect()
    return [row.name for row in lake.spark.table(f"{lake.table}.refs").where("name LIKE 'script%'").collect()]


def dynamic(script: Script, table: str) -> object:
    script.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    return script.sql(f"INSERT OVERWRITE {table} SELECT {DAY_2}, 7L AS n, 'a' AS note")


def merge(script: Script, table: str) -> object:
    return script.sql(
        f"MERGE INTO {table} t USING (SELECT {DAY_2}, id AS n, 'a' AS note FROM range(2, 4)) s ON t.day = s.day AND t.n = s.n "
        "WHEN MATCHED THEN UPDATE SET note = s.note WHEN NOT MATCHED THEN INSERT *"
    )


def delete_and_append(script: Script, table: str) -> object:
    return (
        script.sql(f"DELETE FROM {table} WHERE day = DATE '2013-01-02'"),
        script.sql(f"INSERT INTO {table} SELECT {DAY_2}, 7L AS n, 'a' AS note"),
    )


def append(script: Script, table: str) -> object:
    return script.sql(f"INSERT INTO {table} SELECT {DAY_2}, 7L AS n, 'a' AS note")


WAYS: dict[str, tuple[Writes, list[str]]] = {
    "overwritePartitions": (
        lambda script, table: (
            script.spark.sql(f"SELECT {DAY_2}, 7L AS n, 'a' AS note").writeTo(table).overwritePartitions()
        ),
        ["2 a"],
    ),
    "INSERT OVERWRITE": (dynamic, ["2 a"]),
    "MERGE": (merge, ["2 a", "2 a"]),
    "DELETE and append": (delete_and_append, ["2 a"]),
    # As a plain run does.
    "append": (append, ["2 a", "2 old"]),
    "UPDATE": (lambda script, table: script.sql(f"UPDATE {table} SET note = 'a' WHERE n = 2"), ["2 a"]),
    "compaction at its end": (
        lambda script, table: (merge(script, table), script.sql(f"CALL lake.system.rewrite_data_files('{table}')")),
        ["2 a", "2 a"],
    ),
}


@pytest.mark.parametrize("mode", some(["copy-on-write", "merge-on-read"], "copy-on-write"))
@pytest.mark.parametrize("way", some(WAYS, "INSERT OVERWRITE", "MERGE"))
def test_what_a_script_commits_becomes_visible_when_it_is_published(
    lake: Lake, script: Script, way: str, mode: str
) -> None:
    audited(lake, **{f"write.{each}.mode": mode for each in ("merge", "delete", "update")})
    writes, rows = WAYS[way]
    attempt = lake.attempt(day=2)
    script.run(attempt, writes)
    assert lake.content() == OLD
    assert finish(lake, attempt) == ["1 old", *rows, "3 old"]
    assert (branches(lake), lake.staged()) == ([], [])


@pytest.mark.long
def test_a_table_without_any_snapshot(lake: Lake, script: Script) -> None:
    empty = Lake.create(lake, f"{lake.table}empty")
    lake.table, full = empty, lake.table
    try:
        audited(lake)
        attempt = lake.attempt(day=2)
        script.run(attempt, append)
        assert finish(lake, attempt) == ["2 a"]
    finally:
        lake.table = full


@pytest.mark.long
def test_a_range_publishes_all_its_intervals(lake: Lake, script: Script) -> None:
    attempt = lake.attempt(day=2, runs=2)
    script.run(attempt, lambda _, table: script.sql(f"UPDATE {table} SET note = 'a' WHERE n > 1"))
    assert finish(lake, attempt) == ["1 old", "2 a", "3 a"]


@pytest.mark.long
def test_two_attempts_at_once_do_not_see_each_other(lake: Lake, script: Script) -> None:
    first, second = lake.attempt(day=2), lake.attempt(day=3, run_id=2)
    script.run(first, merge)
    script.run(second, lambda _, table: script.sql(f"UPDATE {table} SET note = 'b' WHERE n = 3"))
    assert finish(lake, first) == ["1 old", "2 a", "2 a", "3 old"]
    assert finish(lake, second) == ["1 old", "2 a", "2 a", "3 b"]


@pytest.mark.long
def test_branches_of_many_attempts_at_once(lake: Lake) -> None:
    attempts = [lake.attempt(day=day, run_id=day) for day in range(1, 9)]
    begin = threading.Barrier(len(attempts))

    def redirect(attempt: Attempt) -> str:
        begin.wait()
        return attempt.staging.tables.redirect("a", lake.spark, Table(lake.table, "day", redirected=True))

    with ThreadPoolExecutor(len(attempts)) as pool:
        made = list(pool.map(redirect, attempts))
        assert sorted(branches(lake)) == sorted(made)
        begin.reset()
        list(pool.map(lambda attempt: (begin.wait(), attempt.staging.discard()), attempts))
    assert branches(lake) == []


REFUSED: dict[str, tuple[Writes, str]] = {
    "nothing": (lambda *_: None, "task 'a' committed nothing to .* sparse=True"),
    "another day": (
        lambda script, table: script.sql(f"UPDATE {table} SET note = 'a'"),
        "the script changed rows of .* outside of its interval, such as day = 2013-01-0[13], .*dynamic",
    ),
    "no day": (
        lambda script, table: script.sql(f"INSERT INTO {table} VALUES (NULL, 7, 'a')"),
        "the script changed rows of .* outside of its interval, such as day = None",
    ),
    "static INSERT OVERWRITE": (
        lambda script, table: script.sql(f"INSERT OVERWRITE {table} SELECT {DAY_2}, 7L AS n, 'a' AS note"),
        "the script changed rows of .* outside of its interval",
    ),
    "the branch is dropped": (
        lambda script, table: script.sql(f"ALTER TABLE {table} DROP BRANCH {script.spark.conf.get(BRANCH)}"),
        "the script dropped the branch script__retrofill_",
    ),
}


@pytest.mark.parametrize("mode", some(["copy-on-write", "merge-on-read"], "copy-on-write"))
@pytest.mark.parametrize("case", some(REFUSED, "nothing", "another day"))
def test_what_cannot_be_published_is_refused_in_one_line_and_nothing_is_left(
    lake: Lake, script: Script, case: str, mode: str
) -> None:
    audited(lake, **{"write.update.mode": mode})
    writes, why = REFUSED[case]
    attempt = lake.attempt(day=2)
    script.run(attempt, writes)
    if mode == "merge-on-read":
        why = why.partition(", such as")[0]
    with pytest.raises(CannotStage, match=why) as refused:
        attempt.staging.tables.take_back("a", lake.spark)
    assert "\n" not in str(refused.value)
    attempt.staging.discard()
    assert (lake.content(), lake.staged(), branches(lake)) == (OLD, [], [])


@pytest.mark.long
def test_of_a_script_that_replaces_the_table_the_error_says_how_to_get_the_rows_back(
    lake: Lake, script: Script
) -> None:
    attempt = lake.attempt(day=2)
    script.run(
        attempt,
        lambda _, table: script.spark.sql(f"SELECT {DAY_2}, 7L AS n, 'a' AS note").writeTo(table).createOrReplace(),
    )
    with pytest.raises(CannotStage, match=r"replaced .* as a whole .*, so its readers see no rows: CALL ") as refused:
        attempt.staging.tables.take_back("a", lake.spark)
    (statement,) = re.findall(r"CALL .*?\)", str(refused.value))
    lake.spark.sql(statement).collect()
    assert lake.content() == OLD


@pytest.mark.long
def test_what_others_change_meanwhile_is_not_lost(lake: Lake, script: Script) -> None:
    attempt = lake.attempt(day=2)
    script.run(attempt, merge)
    lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE '2013-01-03', 9, 'other')").collect()
    assert finish(lake, attempt) == ["1 old", "2 a", "2 a", "3 old", "3 other"]
    again = lake.attempt(day=2)
    script.run(again, merge)
    lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE '2013-01-02', 9, 'other')").collect()
    with pytest.raises(CannotStage, match=r"rows of the interval in .* were changed while the script ran"):
        again.staging.tables.take_back("a", lake.spark)


@pytest.mark.long
def test_a_declared_interval_may_stay_as_it_is(lake: Lake, script: Script) -> None:
    attempt = lake.attempt(day=2)
    script.run(attempt, lambda *_: None, sparse=True)
    assert finish(lake, attempt) == OLD


def test_tables_whose_commits_would_be_seen_at_once_are_refused_before_the_script_runs(lake: Lake) -> None:
    lake.spark.sql(f"ALTER TABLE {lake.table} UNSET TBLPROPERTIES ('write.wap.enabled')").collect()
    attempt = lake.attempt(day=2)
    with pytest.raises(CannotStage, match=r"write\.wap\.enabled=true, so .*: ALTER TABLE .* SET TBLPROPERTIES"):
        attempt.staging.tables.redirect("a", lake.spark, Table(lake.table, "day", redirected=True))
    assert branches(lake) == []


@pytest.mark.long
def test_each_try_and_attempt_has_a_branch_of_its_own(lake: Lake, script: Script) -> None:
    lost = lake.attempt(day=2)
    branch = script.run(lost, append)
    attempt = lake.attempt(day=2)
    failed = script.run(attempt, append)
    assert branches(lake) == [failed], "that of the lost attempt is dropped"
    attempt.staging.begin_try("a")
    script.run(attempt, merge)
    # A process of the lost attempt goes on, and commits.
    script.spark.conf.set(BRANCH, branch)
    append(script, lake.table)
    assert finish(lake, attempt) == ["1 old", "2 a", "2 a", "3 old"]
    assert branches(lake) == [branch]
    script.run(lake.attempt(day=2), append)
    assert len(branches(lake)) == 1 and branches(lake) != [branch]


@pytest.mark.long
def test_a_replaced_publisher_commits_nothing(lake: Lake, script: Script) -> None:
    first = lake.attempt(run_id=1, day=2)
    script.run(first, merge)
    stage(first)
    former = Publisher(first).until("table:commit")
    assert Publisher(lake.attempt(run_id=1, day=2, attempt_id=50, number=1), of=first).finish() is None
    later = lake.attempt(run_id=2, day=2, attempt_id=60)
    script.run(later, delete_and_append)
    assert finish(lake, later) == ["1 old", "2 a", "3 old"]
    first.permitted = False
    assert former.finish() is not None
    assert lake.content() == ["1 old", "2 a", "3 old"]
