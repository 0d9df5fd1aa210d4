"""Undo of tables: the rows that a publication replaced come back in one commit, unless somebody changed them since."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.lake import Attempt, Lake, PublicationFailed, Publisher
from tests.support.tiers import some

from retrofill.outputs.kept import NotKept
from retrofill.protocol.table_output import TableOutput

KEEP_DAYS = 3
CHANGES = ("INSERT INTO {} VALUES (DATE'2013-01-01', 7, 'somebody')", "DELETE FROM {} WHERE n = 0")


def publish(
    lake: Lake, run_id: int, *notes: str, day: str = "2013-01-01", days: int = KEEP_DAYS, backfill: str | None = None
) -> None:
    attempt = lake.attempt(run_id=run_id, day=int(day[-2:]))
    attempt.launch = replace(attempt.launch, keep_replaced_days=days, backfill_id=backfill or f"of run {run_id}")
    attempt.stage(lake.table, *notes, day=day)
    attempt.publish()


def undo(lake: Lake, run_id: int, undoes: int) -> Attempt:
    """An attempt that has staged what a run of the first day replaced."""
    attempt = lake.attempt(run_id=run_id)
    run = replace(attempt.launch.runs[0], restores=undoes)
    attempt = Attempt(attempt.sessions, replace(attempt.launch, runs=(run,), keep_replaced_days=KEEP_DAYS))
    # As it is in the undone run's row; what it had staged is gone.
    undone = TableOutput(lake.table, f"{lake.table}__gone", "day", "date", lake.format)
    attempt.staging.tables.restore("restore", attempt.spark, undone)
    attempt.outputs = attempt.staging.seal()
    return attempt


def test_what_was_replaced_comes_back_and_other_days_stay(lake: Lake) -> None:
    publish(lake, 1, "a", "b")
    publish(lake, 2, "other", day="2013-01-02")
    publish(lake, 3, "wrong")
    publish(lake, 4, "later", day="2013-01-02")
    attempt = undo(lake, 5, undoes=3)
    assert lake.content() == ["1 wrong", "2 later"], "invisible before it is published"
    attempt.publish()
    assert (lake.content(), lake.staged()) == (["1 a", "1 b", "2 later"], [])
    undo(lake, 6, undoes=1).publish()
    assert lake.content() == ["2 later"], "the day was empty before run 1"


@pytest.mark.long
@pytest.mark.parametrize("stop", ["table:look", "table:commit", "table:keep", "table:drop"])
def test_a_publisher_of_an_undo_is_replaced_by_another(lake: Lake, stop: str) -> None:
    publish(lake, 1, "a")
    publish(lake, 2, "wrong")
    attempt = undo(lake, 3, undoes=2)
    former = Publisher(attempt).until(stop)
    other = lake.attempt(run_id=3, attempt_id=50, number=1)
    other.launch = replace(other.launch, keep_replaced_days=KEEP_DAYS)
    assert Publisher(other, of=attempt).finish() is None
    attempt.permitted = False
    former.finish()
    assert (lake.content(), lake.commits(), lake.staged()) == (["1 a"], 3, [])


@pytest.mark.long
@pytest.mark.parametrize("change", some(CHANGES, CHANGES[0]))
def test_rows_that_somebody_changed_since_are_left_alone(lake: Lake, change: str) -> None:
    publish(lake, 1, "a")
    publish(lake, 2, "b", "c")
    attempt = undo(lake, 3, undoes=2)
    lake.spark.sql(change.format(lake.table)).collect()
    before = lake.content()
    error = Publisher(attempt).finish()
    assert isinstance(error, PublicationFailed)
    assert error.kind == "PublishedAgain"
    assert f"the rows of {lake.table} were changed after run 2 had published them" in str(error)
    assert lake.content() == before


@pytest.mark.long
def test_other_days_and_compactions_do_not_matter(lake: Lake) -> None:
    publish(lake, 1, "a")
    publish(lake, 2, "b")
    lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE'2013-01-01', 7, 'x')").collect()
    publish(lake, 3, "c", "d")
    attempt = undo(lake, 4, undoes=3)
    lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE'2013-01-09', 7, 'foreign')").collect()
    if lake.format == "delta":
        lake.spark.sql(f"OPTIMIZE {lake.table}").collect()
    else:
        options = "map('rewrite-all', 'true')"
        lake.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{lake.table}', options => {options})").collect()
    assert Publisher(attempt).finish() is None
    assert lake.content() == ["1 b", "1 x", "9 foreign"]


@pytest.mark.long
def test_a_column_added_since_is_empty_in_what_comes_back(lake: Lake) -> None:
    publish(lake, 1, "a")
    publish(lake, 2, "b")
    lake.spark.sql(f"ALTER TABLE {lake.table} ADD COLUMNS (more string)").collect()
    undo(lake, 3, undoes=2).publish()
    lake.content()
    assert [(row.note, row.more) for row in lake.spark.table(lake.table).collect()] == [("a", None)]


def test_a_run_that_the_table_does_not_know_cannot_be_undone(lake: Lake) -> None:
    publish(lake, 1, "a")
    with pytest.raises(NotKept, match=r"the commit of run 9 is no longer in the history of .*: it cannot be undone"):
        undo(lake, 2, undoes=9)


@pytest.mark.long
@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_a_snapshot_that_was_replaced_does_not_expire(lake: Lake) -> None:
    for run_id, note in enumerate("abc", 1):
        publish(lake, run_id, note)
    lake.content()
    refs = {row.name: row for row in lake.spark.table(f"{lake.table}.refs").collect()}
    assert sorted(refs) == ["main", "retrofill_test_1", "retrofill_test_2", "retrofill_test_3"]
    assert refs["retrofill_test_2"].max_reference_age_in_ms == KEEP_DAYS * 86_400_000
    # Then nothing of ours is the table's head.
    lake.spark.sql(f"INSERT INTO {lake.table} VALUES (DATE'2013-01-09', 7, 'foreign')").collect()
    lake.spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{lake.table}', older_than => TIMESTAMP '2999-01-01 00:00:00', "
        "retain_last => 1)"
    ).collect()
    undo(lake, 4, undoes=3).publish()
    assert lake.content() == ["1 b", "9 foreign"]


@pytest.mark.long
@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_a_snapshot_that_has_expired_cannot_be_restored(lake: Lake) -> None:
    publish(lake, 1, "a", days=0)
    publish(lake, 2, "b", days=0)
    expired = "older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => 1"
    lake.spark.sql(f"CALL lake.system.expire_snapshots(table => '{lake.table}', {expired})").collect()
    with pytest.raises(NotKept, match=r"version \d+ of .* cannot be restored: "):
        undo(lake, 3, undoes=2)
    with pytest.raises(NotKept, match="the commit of run 1 is no longer in the history"):
        undo(lake, 3, undoes=1)


@pytest.mark.long
def test_a_renamed_column_is_not_emptied(lake: Lake) -> None:
    if lake.format == "delta":
        properties = "'delta.columnMapping.mode' = 'name'"
        lake.spark.sql(f"ALTER TABLE {lake.table} SET TBLPROPERTIES ({properties})").collect()
    publish(lake, 1, "a")
    publish(lake, 2, "b")
    lake.spark.sql(f"ALTER TABLE {lake.table} RENAME COLUMN note TO remark").collect()
    error = Publisher(undo(lake, 3, undoes=2)).finish()
    assert isinstance(error, PublicationFailed)
    assert error.kind == "PublishedAgain"


@pytest.mark.long
def test_a_retry_is_undone_with_the_failed_run_that_had_published(lake: Lake) -> None:
    publish(lake, 1, "a")
    publish(lake, 2, "wrong", backfill="b")
    publish(lake, 3, "wrong again", backfill="b")
    undo(lake, 4, undoes=3).publish()
    assert lake.content() == ["1 a"]


@pytest.mark.long
def test_what_an_undo_restored_and_failed_after_that_is_restored_again(lake: Lake) -> None:
    publish(lake, 1, "a")
    publish(lake, 2, "wrong")
    undo(lake, 3, undoes=2).publish()
    error = Publisher(undo(lake, 4, undoes=2)).finish()
    assert (error, lake.content()) == (None, ["1 a"])
