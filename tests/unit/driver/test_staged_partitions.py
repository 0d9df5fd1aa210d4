"""Partitions that a script may write below a root, and those of them that are published."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.driver.launches import launch_of, run_of

from retrofill.driver.preparing import Fields
from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.kept import AREA, key_of
from retrofill.outputs.publication import sealed_folder
from retrofill.outputs.staging import Staging

ROOT = "{stage_partitions:{conf[out]}/t, "
DAILY, HOURLY = ROOT + "dt={interval.start:%Y-%m-%d}}", ROOT + "dt={interval.each:%Y-%m-%d}/h={interval.each:%H}}"


class Script:
    """A try of a script's task for the first of January 2013, and what it writes below the root that it gets."""

    def __init__(self, tmp_path: Path, argument: str) -> None:
        launch = launch_of(
            run_of(7, "2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z"), conf={"out": str(tmp_path)}, attempt_id=25
        )
        self.out = tmp_path / "t"
        self.staging = Staging(launch, launch.pieces[0])
        (root,) = Fields(launch, launch.pieces[0], self.staging, "a").fill([argument])
        self.root = Path(root)

    def write(self, *files: str) -> Script:
        for each in files:
            (self.root / each).parent.mkdir(parents=True, exist_ok=True)
            (self.root / each).write_text("x")
        return self

    def sealed(self) -> dict[str, list[str]]:
        """The files of each partition that would be published."""
        (outputs,) = self.staging.seal().values()
        return {str(Path(each).relative_to(self.out)): self._files(Path(each)) for each in outputs}

    def _files(self, target: Path) -> list[str]:
        folder = sealed_folder(target, key_of("", 7), 25) / "new"
        files = (str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
        return sorted(each for each in files if not each.startswith("_retrofill"))


DAY = "dt=2013-01-01"


@pytest.mark.parametrize(
    ("argument", "files", "published"),
    [
        (DAILY, [f"{DAY}/part-0.parquet", f"{DAY}/.part-0.crc"], {DAY: [".part-0.crc", "part-0.parquet"]}),
        (DAILY, [f"{DAY}/country=DE/x.csv", f"{DAY}/country=FR/x.csv", "_SUCCESS", "._SUCCESS.crc"], None),
        (DAILY, [f"{DAY}/x.json", "_temporary/0/dt=2013-01-02/x.json", ".spark-staging-1/dt=2013-01-02/x"], None),
        (DAILY, [f"{DAY}/x.orc", "_metadata", "_common_metadata"], None),
        # A job without a row.
        (DAILY, ["_SUCCESS"], {DAY: []}),
        (HOURLY, [f"{DAY}/h=07/x", f"{DAY}/h=23/x"], {f"{DAY}/h={n:02}": ["x"] * (n in (7, 23)) for n in range(24)}),
        (
            ROOT + "year={interval.start:%Y}/month={interval.start:%-m}/day={interval.start:%-d}}",
            ["year=2013/month=1/day=1/x"],
            {"year=2013/month=1/day=1": ["x"]},
        ),
        (ROOT + "city=JFK/dt={interval.each}}", ["city=JFK/dt=2013-01-01/x"], {"city=JFK/dt=2013-01-01": ["x"]}),
        (
            ROOT + "ts={interval.each:%Y-%m-%d}%2000%3A00}",
            ["ts=2013-01-01%2000%3A00/x"],
            {"ts=2013-01-01%2000%3A00": ["x"]},
        ),
    ],
)
def test_the_partitions_of_the_interval_are_published(
    tmp_path: Path, argument: str, files: list[str], published: dict[str, list[str]] | None
) -> None:
    if published is None:
        inside = [each.removeprefix(f"{DAY}/") for each in files if each.startswith(DAY)]
        published = {DAY: sorted(inside)}
    script = Script(tmp_path, argument).write(*files)
    assert script.sealed() == published
    assert not script.root.exists()


@pytest.mark.parametrize(
    ("argument", "files", "why"),
    [
        (
            DAILY,
            [f"{DAY}/x", "dt=2013-01-02/x"],
            "task 'a' wrote dt=2013-01-02, which is the partition of no interval of this run: write only the data of the "
            f"interval, which is in {DAY}",
        ),
        (DAILY, ["dt=2013-1-1/x"], "wrote dt=2013-1-1, which is"),
        (DAILY, [f"{DAY}/x", "dt=__HIVE_DEFAULT_PARTITION__/x"], "wrote dt=__HIVE_DEFAULT_PARTITION__, which is"),
        (DAILY, [f"{DAY}/x", "_dt=2013-01-02/x"], "wrote _dt=2013-01-02, which is"),
        (DAILY, ["part-0.parquet"], f"wrote part-0.parquet beside the partitions: write it to {DAY}, as Spark does"),
        (DAILY, ["t/dt=2013-01-01/x"], "wrote t/dt=2013-01-01, which is"),
        (HOURLY, [f"{DAY}/h=7/x"], f"is in {DAY}/h=00 to {DAY}/h=23"),
        (HOURLY, [f"{DAY}/x"], f"wrote {DAY}, which is the partition of no interval"),
        (DAILY, [], "wrote nothing to the directory that it was given for partitions of"),
    ],
)
def test_whatever_else_it_wrote_is_refused_and_nothing_is_left(
    tmp_path: Path, argument: str, files: list[str], why: str
) -> None:
    script = Script(tmp_path, argument).write(*files)
    with pytest.raises(CannotStage) as refused:
        script.staging.seal()
    assert why in str(refused.value) and "\n" not in str(refused.value)
    script.staging.discard()
    assert [each for each in script.out.rglob("*") if each.is_file()] == []


def test_a_partition_of_another_interval_is_refused_before_the_script_begins(tmp_path: Path) -> None:
    assert Script(tmp_path, DAILY).write(f"{DAY}/x").sealed()
    launch = launch_of(run_of(8, "2013-01-01T06:00:00Z", "2013-01-02T06:00:00Z"), attempt_id=26)
    staging = Staging(launch, launch.pieces[0])
    with pytest.raises(CannotStage, match="belongs to the interval 2013-01-01 of"):
        staging.stage_all_partitions("a", str(tmp_path / "t"), [DAY])


def test_a_root_that_is_named_twice_is_staged_once_and_a_later_script_reads_it(tmp_path: Path) -> None:
    script = Script(tmp_path, DAILY + DAILY.replace("{stage", " {stage"))
    first, second = str(script.root).split(" ")
    assert first == second
    script.root = Path(first)
    script.write(f"{DAY}/x")
    assert script.staging.staged(str(script.out)) == first
    assert script.staging.staged(str(script.out / DAY)) == f"{first}/{DAY}"


def test_a_retry_gets_another_root_and_nothing_of_the_failed_try_is_published(tmp_path: Path) -> None:
    script = Script(tmp_path, DAILY).write(f"{DAY}/of-the-first", "dt=2013-01-09/x")
    script.staging.begin_try("a")
    assert not script.root.exists()
    script.root = Path(script.staging.stage_all_partitions("a", str(script.out), [DAY]))
    assert script.write(f"{DAY}/of-the-second").sealed() == {DAY: ["of-the-second"]}
    assert [each.name for each in script.out.iterdir()] == [AREA]
