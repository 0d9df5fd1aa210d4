"""Outputs of a range: one for each of its intervals, from one job or from several."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.driver.launches import launch_of, run_of

from retrofill.driver import context
from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.kept import AREA, MARKER, key_of
from retrofill.outputs.publication import sealed_folder
from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Launch

DAYS = (1, 2, 3)


def launch(sparse: bool = False) -> Launch:
    """A range of three days in the attempt with the id 25; their runs have the ids 7 to 9."""
    runs = (run_of(6 + day, f"2013-01-0{day}T00:00:00Z", f"2013-01-0{day + 1}T00:00:00Z", attempt=day) for day in DAYS)
    pipeline = {"batch_size": 3, "batch_mode": "range", "tasks": [{"name": "a", "sparse": sparse}]}
    return launch_of(*runs, pipeline=pipeline)


class Ranged:
    """A task of a range, and what it stages."""

    def __init__(self, launch: Launch) -> None:
        (piece,) = launch.pieces
        self.staging = Staging(launch, piece)
        self.run = context.run_of(launch, piece, None, self.staging, "a")  # type: ignore[arg-type]  # no session is used


@pytest.fixture
def ranged() -> Ranged:
    return Ranged(launch())


def write(folder: str | Path) -> None:
    Path(folder).mkdir(parents=True)
    Path(folder, "part-0").write_text("x")


def test_the_run_is_the_whole_range(ranged: Ranged) -> None:
    run = ranged.run
    assert (run.id, run.attempt, len(run.intervals)) == (7, 1, 3)
    assert (run.interval.start, run.interval.end) == (run.intervals[0].start, run.intervals[-1].end)
    assert run.logical_date == run.intervals[0].start


def test_each_interval_has_its_own_output(ranged: Ranged, tmp_path: Path) -> None:
    for interval in ranged.run.intervals:
        write(ranged.run.stage(f"{tmp_path}/day={interval.start:%d}", interval))
    sealed = ranged.staging.seal()
    assert sealed == {6 + day: (f"{tmp_path}/day=0{day}",) for day in DAYS}
    for day in DAYS:
        marker = sealed_folder(tmp_path / f"day=0{day}", key_of("", 6 + day), 25) / "new" / MARKER
        about = json.loads(marker.read_text())
        assert (about["run_id"], about["attempt"], about["interval_start"][:10]) == (6 + day, day, f"2013-01-0{day}")


def test_one_job_writes_a_partition_for_each(ranged: Ranged, tmp_path: Path) -> None:
    to = ranged.run.stage_partitions(str(tmp_path), "year=2013/day={interval.start:%d}")
    for day in DAYS:
        write(f"{to}/year=2013/day=0{day}")
    Path(to, "_SUCCESS").touch()
    assert ranged.run.staged(str(tmp_path)) == to
    assert ranged.staging.seal() == {6 + day: (f"{tmp_path}/year=2013/day=0{day}",) for day in DAYS}
    sealed = [sealed_folder(tmp_path / f"year=2013/day=0{day}", key_of("", 6 + day), 25) for day in DAYS]
    assert [(folder / "new" / "part-0").read_text() for folder in sealed] == ["x"] * 3


def test_a_retry_stages_the_partitions_again(ranged: Ranged, tmp_path: Path) -> None:
    first, second = (ranged.run.stage_partitions(str(tmp_path), "day={interval.start:%d}") for _ in range(2))
    assert first != second
    for day in DAYS:
        write(f"{second}/day=0{day}")
    assert len(ranged.staging.seal()) == 3


@pytest.mark.parametrize("sparse", [False, True])
def test_a_partition_that_is_staged_again_leaves_the_others(tmp_path: Path, sparse: bool) -> None:
    ranged = Ranged(launch(sparse))
    to = ranged.run.stage_partitions(str(tmp_path), "day={interval.start:%d}")
    for day in DAYS:
        write(f"{to}/day=0{day}")
    again = ranged.run.stage(f"{tmp_path}/day=02", ranged.run.intervals[1])
    write(again)
    Path(again, "part-0").write_text("again")
    assert ranged.run.staged(f"{tmp_path}/day=02") == again
    assert ranged.run.staged(f"{tmp_path}/day=03") == f"{to}/day=03"
    with pytest.raises(CannotStage, match="read each partition"):
        ranged.run.staged(str(tmp_path))
    assert ranged.staging.seal() == {6 + day: (f"{tmp_path}/day=0{day}",) for day in DAYS}
    sealed = [sealed_folder(tmp_path / f"day=0{day}", key_of("", 6 + day), 25) for day in DAYS]
    assert [(folder / "new" / "part-0").read_text() for folder in sealed] == ["x", "again", "x"]
    assert not Path(to).exists()


@pytest.mark.parametrize("partitions", [False, True])
def test_an_interval_without_output_is_an_error_with_its_date(ranged: Ranged, tmp_path: Path, partitions: bool) -> None:
    stage(ranged, tmp_path, partitions, (1,))
    with pytest.raises(
        CannotStage, match=r"task .a. staged no output for the interval that starts 2013-01-02.* and 1 more"
    ):
        ranged.staging.seal()
    ranged.staging.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("days", [1, 3])
def test_no_output_at_all_is_an_error_too(tmp_path: Path, days: int) -> None:
    made = launch()
    ranged = Ranged(replace(made, runs=made.runs[:days]))
    to = ranged.run.stage_partitions(str(tmp_path), "day={interval.start:%d}")
    Path(to).mkdir()
    Path(to, "_SUCCESS").write_text("")
    with pytest.raises(CannotStage, match="task 'a' staged no output for the interval that starts 2013-01-01"):
        ranged.staging.seal()


def test_of_two_intervals_of_one_hour_of_the_clock_each_has_its_own_output(tmp_path: Path) -> None:
    hours = [f"2024-11-03T0{hour}:00:00Z" for hour in (5, 6, 7)]
    runs = [
        run_of(7 + n, hours[n], hours[n + 1], utc_offsets=offsets)
        for n, offsets in enumerate([(-14400, -18000), (-18000, -18000)])
    ]
    ranged = Ranged(launch_of(*runs, pipeline={"timezone": "America/New_York"}))
    for number, interval in enumerate(ranged.run.intervals):
        write(ranged.run.stage(f"{tmp_path}/{number}", interval))
    assert ranged.staging.seal() == {7: (f"{tmp_path}/0",), 8: (f"{tmp_path}/1",)}


@pytest.mark.parametrize("partitions", [False, True])
def test_unless_the_task_is_sparse(tmp_path: Path, partitions: bool) -> None:
    ranged = Ranged(launch(sparse=True))
    stage(ranged, tmp_path, partitions, (2,))
    assert ranged.staging.seal() == {8: (f"{tmp_path}/day=02",)}
    # Nothing is left of what all were written to.
    assert [folder.name for folder in (tmp_path / AREA).glob("*/*.writing-*")] == []


def stage(ranged: Ranged, folder: Path, partitions: bool, days: tuple[int, ...]) -> None:
    to = ranged.run.stage_partitions(str(folder), "day={interval.start:%d}") if partitions else ""
    for interval in ranged.run.intervals:
        if interval.start.day in days:
            name = f"day={interval.start:%d}"
            write(f"{to}/{name}" if partitions else ranged.run.stage(f"{folder}/{name}", interval))


def test_a_partition_of_no_interval_is_an_error(ranged: Ranged, tmp_path: Path) -> None:
    to = ranged.run.stage_partitions(str(tmp_path), "day={interval.start:%d}")
    for day in (*DAYS, 4):
        write(f"{to}/day=0{day}")
    with pytest.raises(CannotStage, match="task 'a' wrote day=04, which is the partition of no interval"):
        ranged.staging.seal()


def test_what_a_range_cannot_stage_says_what_to_do(ranged: Ranged, tmp_path: Path) -> None:
    run, other = ranged.run, run_of_another_day()
    with pytest.raises(CannotStage, match=r"has 3 intervals: call run.stage\(path, interval\)"):
        run.stage(f"{tmp_path}/all")
    with pytest.raises(CannotStage, match=r"is not one of run\.intervals"):
        run.stage(f"{tmp_path}/all", other)
    run.stage(f"{tmp_path}/all", run.intervals[0])
    with pytest.raises(CannotStage, match="already the output of another interval"):
        run.stage(f"{tmp_path}/all", run.intervals[1])
    with pytest.raises(CannotStage, match="two intervals have the same partition"):
        run.stage_partitions(str(tmp_path), "month={interval.start:%m}")
    with pytest.raises(CannotStage, match="cannot be formatted"):
        run.stage_partitions(str(tmp_path), "day={day}")


def run_of_another_day():
    return Ranged(launch_of(run_of(1, "2014-01-01T00:00:00Z", "2014-01-02T00:00:00Z"))).run.interval
