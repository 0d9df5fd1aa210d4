"""Tables whose partitions are in a catalog: published by their locations, undone, and cleaned up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.hive import KEEP_DAYS, HiveLake, Killed, mortal
from tests.support.lake import Attempt, PublicationFailed, Publisher
from tests.support.tiers import some

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.kept import NotKept, today
from retrofill.outputs.tables import hive_records

# The catalog in Spark's memory has the same statements as a metastore, and costs no server of its own.
KINDS = (
    "USING parquet in table_server",
    "STORED AS PARQUET in embedded_metastore",
    "USING parquet in embedded_metastore",
    "STORED AS PARQUET in standalone_metastore",
)
OTHER = "INSERT INTO {} (n, note, day) VALUES (7, 'neighbor', DATE'2013-01-02')"


@pytest.fixture(params=some(KINDS, KINDS[0]))
def lake(request: pytest.FixtureRequest) -> Iterator[HiveLake]:
    storage, _, server = str(request.param).partition(" in ")
    with HiveLake(str(request.getfixturevalue(server)), storage) as made:
        made.spark.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
        made.spark.sql(OTHER.format(made.table))
        yield made


def test_a_day_is_published_replaced_and_undone(lake: HiveLake) -> None:
    first = lake.keeping(1, 1)
    first.stage(lake.table, "a", "b")
    assert lake.content() == ["2 neighbor"], "invisible before it is published"
    first.publish()
    assert lake.content() == ["1 a", "1 b", "2 neighbor"]
    lake.published(2, "wrong")
    assert (lake.content(), lake.staged_only()) == (["1 wrong", "2 neighbor"], [])
    undo = lake.undo(3, undoes=2)
    assert lake.content() == ["1 wrong", "2 neighbor"], "invisible before it is published"
    undo.publish()
    assert lake.content() == ["1 a", "1 b", "2 neighbor"]
    lake.undo(4, undoes=1).publish()
    assert (lake.content(), lake.partitions()) == (["2 neighbor"], ["day=2013-01-02"])


@pytest.mark.long
def test_an_interval_without_rows_is_empty(lake: HiveLake) -> None:
    lake.published(1, "a")
    lake.published(2)
    assert lake.content() == ["2 neighbor"]
    lake.undo(3, undoes=2).publish()
    assert lake.content() == ["1 a", "2 neighbor"]
    lake.published(4, day=5)
    assert lake.content() == ["1 a", "2 neighbor"]


@pytest.mark.long
def test_a_publisher_that_is_killed_between_its_changes_is_replaced_by_another(lake: HiveLake) -> None:
    lake.published(1, "before")
    assert not killed(lake, lake.keeping(2, 1), 3, "after")
    assert lake.content() == ["1 after", "2 neighbor"]
    lake.undo(3, undoes=2).publish()
    assert lake.content() == ["1 before", "2 neighbor"]


@pytest.mark.long
def test_a_publisher_that_is_killed_anywhere_is_replaced_by_another(lake: HiveLake) -> None:
    before = "before"
    lake.published(1, before)
    for at in range(100):
        ended = killed(lake, lake.keeping(2 + at, 1), at, f"after {at}")
        assert lake.content() == [f"1 after {at}", "2 neighbor"]
        if ended:
            break
        before = f"after {at}"
    assert at > 3
    lake.undo(200, undoes=2 + at).publish()
    assert lake.content() == [f"1 {before}", "2 neighbor"]


@pytest.mark.long
def test_an_undo_that_is_killed_anywhere_is_finished_by_another(lake: HiveLake) -> None:
    """It drops what was added."""
    for at in range(100):
        lake.published(10 * at + 1, "wrong")
        ended = killed(lake, lake.undo(10 * at + 2, undoes=10 * at + 1), at)
        assert (lake.content(), lake.partitions()) == (["2 neighbor"], ["day=2013-01-02"])
        if ended:
            break
    assert at > 3


def killed(lake: HiveLake, attempt: Attempt, at: int, *notes: str) -> bool:
    """Kill an attempt's publisher before its ``at``-th change, and let another one finish. Whether it had no more of them.

    ``notes``: of the rows that it stages first, unless it has.
    """
    before = lake.content()
    if notes:
        attempt.stage(lake.table, *notes)
    session = mortal(attempt, at)
    former = Publisher(attempt)
    with suppress(Killed):
        former.finish()
    assert lake.content() in (before, [*(f"1 {each}" for each in notes), "2 neighbor"])
    other = lake.attempt(run_id=attempt.run.id, number=1)
    other.launch = replace(other.launch, keep_replaced_days=KEEP_DAYS)
    assert Publisher(other, of=attempt).finish() is None
    assert lake.staged_only() == []
    return len(session.statements) <= at


def test_former_publishers_have_ended_before_the_next_one_begins(
    lake: HiveLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = lake.keeping(1, 1)
    attempt.stage(lake.table, "a")
    ended: list[object] = []
    shared = type(attempt.sessions)
    monkeypatch.setattr(shared, "end_publications", lambda _, attempts: ended.append((*attempts, *lake.content())))
    other = lake.attempt(run_id=1, number=1)
    other.launch = replace(other.launch, publishers=(attempt.launch.attempt_id,))
    other.outputs = attempt.outputs
    other.publish(attempt.launch.attempt_id)
    assert ended == [(attempt.launch.attempt_id, "2 neighbor")]
    assert lake.content() == ["1 a", "2 neighbor"]


@pytest.mark.long
@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO {} (n, note, day) VALUES (7, 'somebody', DATE'2013-01-01')",
        "ALTER TABLE {} DROP PARTITION (day = DATE'2013-01-01')",
    ],
)
def test_rows_that_somebody_changed_since_are_left_alone(lake: HiveLake, change: str) -> None:
    lake.published(1, "a")
    lake.published(2, "b", "c")
    undo = lake.undo(3, undoes=2)
    lake.spark.sql(change.format(lake.table))
    before = lake.content()
    error = Publisher(undo).finish()
    assert isinstance(error, PublicationFailed)
    assert error.kind == "PublishedAgain"
    assert f"the rows of {lake.table} were changed after run 2 had published them" in str(error)
    assert lake.content() == before


@pytest.mark.long
def test_a_column_that_was_added_since_does_not_prevent_an_undo(lake: HiveLake) -> None:
    lake.published(1, "a")
    lake.published(2, "b")
    lake.spark.sql(f"ALTER TABLE {lake.table} ADD COLUMNS (more string)")
    lake.undo(3, undoes=2).publish()
    assert lake.content() == ["1 a", "2 neighbor"]


@pytest.mark.long
def test_a_retry_in_a_backfill_undoes_to_what_was_before_the_backfill(lake: HiveLake) -> None:
    lake.published(1, "before")
    lake.published(2, "failed", backfill="x")
    lake.published(3, "again", backfill="x")
    lake.undo(4, undoes=3).publish()
    assert lake.content() == ["1 before", "2 neighbor"]


@pytest.mark.long
def test_what_was_replaced_is_deleted_when_it_is_no_longer_kept(
    lake: HiveLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.published(1, "a")
    lake.published(2, "b")
    lake.undo(3, undoes=2).publish()
    lake.published(4, "c")
    assert len(lake.files()) == 3
    tomorrow = today() + timedelta(days=4)
    monkeypatch.setattr(hive_records, "today", lambda: tomorrow)
    lake.published(5, "d", day=3)
    assert lake.content() == ["1 c", "2 neighbor", "3 d"]
    assert [len(lake.records()), len(lake.files())] == [1, 2], "of the third day, and c and d"
    with pytest.raises(NotKept, match="the commit of run 4 is no longer in the history of"):
        lake.undo(6, undoes=4)


@pytest.mark.long
def test_what_is_not_published_is_deleted(lake: HiveLake) -> None:
    attempt = lake.keeping(1, 1)
    attempt.stage(lake.table, "a")
    assert len(lake.files()) == 1
    attempt.staging.discard()
    assert lake.staged() == []
    lost = lake.keeping(2, 1)
    lost.stage(lake.table, "lost")
    lake.published(3, "b")
    assert (len(lake.files()), lake.staged_only()) == (1, [])


@pytest.mark.long
def test_a_change_during_a_review_is_found(lake: HiveLake) -> None:
    """A foreign writer may replace files where they are."""
    from retrofill.outputs.reviewed import remember

    lake.published(1, "a")
    attempt = lake.keeping(2, 1)
    attempt.stage(lake.table, "b")
    bases = remember(attempt.launch, attempt.piece, attempt.outputs, lambda: attempt.spark)
    again = remember(attempt.launch, attempt.piece, attempt.outputs, lambda: attempt.spark)
    assert _contents(bases) == _contents(again)
    lake.spark.sql(f"INSERT INTO {lake.table} (n, note, day) VALUES (7, 'somebody', DATE'2013-01-01')")
    lake.content()
    assert _contents(bases) != _contents(
        remember(attempt.launch, attempt.piece, attempt.outputs, lambda: attempt.spark)
    )


def _contents(bases: dict[int, tuple[str, ...]]) -> list[str]:
    from retrofill.outputs.base import Base

    return [Base.of(each).content for (each,) in bases.values()]


def test_what_partitions_cannot_tell_apart_is_refused(lake: HiveLake) -> None:
    lake.spark.sql("DROP TABLE IF EXISTS plain")
    lake.spark.sql("CREATE TABLE plain (n bigint, note string, day date) USING parquet")
    with pytest.raises(CannotStage, match=r"spark_catalog\.default\.plain is not partitioned by 'day'"):
        lake.keeping(1, 1).stage("plain", "a")


@pytest.mark.long
@pytest.mark.parametrize("storage", ["USING parquet", "STORED AS PARQUET", "STORED AS TEXTFILE"])
def test_what_others_append_to_a_published_partition_is_seen_beside_it(embedded_metastore: str, storage: str) -> None:
    with HiveLake(embedded_metastore, storage) as lake:
        lake.spark.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
        lake.published(1, "published")
        lake.spark.sql(f"INSERT INTO {lake.table} (n, note, day) VALUES (7, 'appended', DATE'2013-01-01')")
        assert lake.content() == ["1 appended", "1 published"]
