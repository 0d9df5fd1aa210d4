"""The identity of a group of runs, what its commit says of it, and which tables keep its intervals apart."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.lake import launch

from retrofill.outputs.tables.group import (
    Commit,
    Group,
    commit_of,
    first_of_backfill,
    groups_of,
    ids_in,
    ids_text,
    merged,
    moments_in,
    moments_text,
    separates,
)
from retrofill.protocol.launch import Launch
from retrofill.protocol.table_output import TableOutput

START = datetime(2013, 1, 1, 5, tzinfo=UTC)
DAY = timedelta(days=1)


def group(*days: int, type: str = "date", step: timedelta = DAY, start: datetime = START, zone: str = "") -> Group:
    """The runs of these days in New York, staged by the attempt with the id 25."""
    made = launch(range(1, max(days) + 1), 25, 1, 0)
    made = replace(made, pipeline=replace(made.pipeline, timezone=zone or made.pipeline.timezone))
    output = str(TableOutput("t", "t_25", "at", type, "iceberg"))
    runs = [
        replace(run, outputs=(output,), interval_start=start + n * step, interval_end=start + (n + 1) * step)
        for n, run in enumerate(made.runs)
        if n + 1 in days
    ]
    (found,) = groups_of(made, 25, runs)
    return found


@pytest.mark.parametrize(
    ("ids", "text"), [([], ""), ([7], "7"), ([8, 7], "7-8"), ([1, 2, 3, 7, 9, 10], "1-3,7,9-10"), ([1, 1], "1")]
)
def test_ids_are_kept_as_ranges(ids: list[int], text: str) -> None:
    assert ids_text(ids) == text
    assert [id for id in range(12) if id in ids_in(text)] == sorted(set(ids))


def test_adjacent_intervals_are_one_and_gaps_stay() -> None:
    days = [(START + n * DAY, START + (n + 1) * DAY) for n in (4, 0, 1, 2)]
    assert merged(days) == [(START, START + 3 * DAY), (START + 4 * DAY, START + 5 * DAY)]
    assert moments_in(moments_text(days)) == merged(days)


def test_the_condition_of_a_group_has_no_row_of_a_gap() -> None:
    assert group(1, 2, 4).condition == (
        "(`at` >= DATE '2013-01-01' AND `at` < DATE '2013-01-03') OR (`at` >= DATE '2013-01-04' AND `at` < DATE '2013-01-05')"
    )


def test_a_group_is_the_same_wherever_it_is_derived_and_no_other() -> None:
    whole = group(1, 2, 3, 4)
    again = replace(whole, launch=replace(whole.launch, attempt_id=99, runs=()))
    first, second = whole.halves()
    held = replace(whole, review=1)
    assert again.id == whole.id
    others = [first, second, held, replace(whole, attempt=26), *whole.singles()]
    assert len({each.id for each in (whole, *others)}) == 1 + len(others)
    assert [len(half.members) for half in group(1, 2, 3).halves()] == [1, 2]


def test_runs_that_a_review_took_out_form_a_group_of_their_own() -> None:
    made: Launch = launch(range(1, 4), 25, 1, 0)
    output = (str(TableOutput("t", "t_25", "at", "date", "delta")), "/data/day=1")
    runs = [replace(run, outputs=output, review=int(run.id == 2)) for run in made.runs]
    found = groups_of(made, 25, runs)
    # The first one is what it was before the review: all publishers agree on it.
    assert [(each.review, [run.id for run in each.runs]) for each in found] == [(0, [1, 2, 3]), (1, [2])]
    assert found[0].id == groups_of(made, 25, [replace(run, review=0) for run in runs])[0].id


def commit(version: int, of: Group, **more: str) -> Commit:
    return Commit(version, version - 1, {**of.marker, **more})


def test_an_undo_finds_the_last_commit_of_a_run_and_the_first_of_its_backfill() -> None:
    whole, single = group(1, 2, 3), group(2)
    foreign = Commit(3, 2, {})
    commits = [commit(4, single), foreign, commit(2, whole), commit(1, whole, backfill_id="another")]
    found = commit_of(commits, "test", 2)
    assert found is commits[0]
    assert found is not None
    assert first_of_backfill(commits, found, (START + DAY, START + 2 * DAY)) is commits[2]
    assert commit_of(commits, "test", 3) is commits[2]
    assert commit_of(commits, "elsewhere", 3) is None
    assert commit_of(commits, "test", 3, undo=True) is None


def test_commits_of_other_intervals_of_the_same_pipeline_change_nothing() -> None:
    own = group(2, 3).marker
    assert commit(1, group(1, 4)).is_of_another(own)
    assert not commit(1, group(3)).is_of_another(own)
    assert not commit(1, group(5), pipeline="another").is_of_another(own)
    assert not Commit(1, 0, {}).is_of_another(own)


MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("partition", "type", "step", "start", "zone", "apart"),
    [
        ("at", "date", DAY, START, "", True),
        ("days(at)", "date", DAY, START, "", True),
        ("months(at)", "date", DAY, START, "", False),
        ("days(at)", "timestamp", DAY, START, "", False),
        ("hours(at)", "timestamp", DAY, START, "", True),
        ("days(at)", "timestamp", DAY, MIDNIGHT, "UTC", True),
        ("days(at)", "timestamp", HOUR, MIDNIGHT, "UTC", False),
        ("hours(at)", "timestamp", HOUR, MIDNIGHT, "UTC", True),
        ("hours(at)", "timestamp", DAY, MIDNIGHT - timedelta(hours=5, minutes=45), "Asia/Kathmandu", False),
        ("days(at)", "timestamp_ntz", DAY, MIDNIGHT - timedelta(hours=5, minutes=45), "Asia/Kathmandu", True),
        ("years(at)", "date", DAY, START, "", False),
        ("bucket(4, at)", "date", DAY, START, "", False),
        ("truncate(10, at)", "string", DAY, START, "", False),
        ("other", "date", DAY, START, "", False),
        ("days(`at`)", "date", DAY, START, "", True),
    ],
)
def test_a_table_keeps_intervals_apart_if_its_partitions_begin_with_them(
    partition: str, type: str, step: timedelta, start: datetime, zone: str, apart: bool
) -> None:
    of = group(1, 2, 3, type=type, step=step, start=start, zone=zone)
    assert separates([partition], of) is apart
    assert separates(["bucket(2, n)", partition], of) is apart
    assert not separates([], of)
