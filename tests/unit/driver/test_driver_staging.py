"""Outputs that may be staged, and what an attempt leaves behind."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.unit.driver.launches import launch_of, run_of

from retrofill.outputs.cannot_stage import CannotStage, local_path
from retrofill.outputs.kept import AREA, MARKER, key_of
from retrofill.outputs.publication import sealed_folder
from retrofill.outputs.staging import MAX_OUTPUTS, Staging


def staging_of(run_id: int) -> Staging:
    """One run of an attempt with the id 25."""
    launch = launch_of(run_of(run_id, "2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z", attempt=2))
    return Staging(launch, launch.pieces[0])


@pytest.fixture
def staging() -> Staging:
    return staging_of(7)


def write(folder: str, text: str = "x") -> None:
    Path(folder).mkdir()
    Path(folder, "part-0").write_text(text)


@pytest.mark.parametrize(
    "path", ["/data/day=1", "file:/data/day=1", "file:///data/day=1", "file://localhost/data/day%3D1"]
)
def test_local_paths(path: str) -> None:
    assert local_path(path) == Path("/data/day=1")


@pytest.mark.parametrize("scheme", ["", "file:", "file://", "file://localhost"])
@pytest.mark.parametrize("path", ["/data/c#/day=1", "/data/c?/day=1", "/data/c:1/day=1"])
def test_every_character_of_a_local_path_counts(scheme: str, path: str) -> None:
    assert local_path(scheme + path) == Path(path)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("s3a://bucket/day=1", "a rename on s3a: does not fail when it must; make a table"),
        ("hdfs://name/day=1", "a rename on hdfs: does not fail when it must; make a table"),
        ("file://elsewhere/day=1", "cannot be staged"),
        ("data/day=1", "give the absolute path"),
        ("/", "give the absolute path"),
        ("", "give the absolute path"),
        ("/data/../day=1", "write it without '..'"),
    ],
)
def test_what_cannot_be_staged_says_why_in_one_line(path: str, why: str) -> None:
    with pytest.raises(CannotStage, match=why) as caught:
        local_path(path)
    assert "\n" not in str(caught.value)


def test_each_try_writes_to_a_path_of_its_own_and_the_last_one_counts(staging: Staging, tmp_path: Path) -> None:
    target = f"{tmp_path}/day=1"
    first = staging.stage("a", target)
    write(first, "of the try that failed")
    second = staging.stage("a", target)
    assert first != second
    write(second, "of the last try")
    assert staging.staged(target) == second
    assert staging.seal() == {7: (target,)}
    assert (sealed_folder(Path(target), key_of("", 7), 25) / "new" / "part-0").read_text() == "of the last try"


def test_what_a_task_stages_again_can_be_read_until_its_output_is_sealed(staging: Staging, tmp_path: Path) -> None:
    """Spark reads when it writes."""
    target = f"{tmp_path}/day=1"
    first = staging.stage("a", target)
    write(first, "many small files")
    second = staging.stage("a", target)
    assert Path(first, "part-0").exists()
    Path(first).rename(second)
    write(first, "left")
    staging.seal()
    assert not Path(first).exists()
    assert (sealed_folder(Path(target), key_of("", 7), 25) / "new" / "part-0").read_text() == "many small files"


def test_a_failed_attempt_leaves_nothing_of_what_was_staged_again(staging: Staging, tmp_path: Path) -> None:
    first = staging.stage("a", f"{tmp_path}/day=1")
    write(first)
    staging.stage("a", f"{tmp_path}/day=1")
    staging.discard()
    assert not Path(first).exists()


def test_one_task_writes_an_output_and_outputs_do_not_overlap(staging: Staging, tmp_path: Path) -> None:
    staging.stage("a", f"{tmp_path}/t")
    with pytest.raises(CannotStage, match=r"task 'a' already stages .*/t: only one task may write an output"):
        staging.stage("b", f"{tmp_path}/t")
    for inside in (f"{tmp_path}/t/day=1", str(tmp_path)):
        with pytest.raises(CannotStage, match="one contains the other"):
            staging.stage("b", inside)
    staging.stage("b", f"{tmp_path}/t2")
    with pytest.raises(CannotStage, match="no task of this run has staged"):
        staging.staged(f"{tmp_path}/t3")


def test_the_number_of_outputs_is_limited(staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_OUTPUTS == 1000
    monkeypatch.setattr("retrofill.outputs.staging.MAX_OUTPUTS", 3)
    for n in range(3):
        staging.stage("a", f"{tmp_path}/{n}")
    with pytest.raises(CannotStage, match="at most 3 outputs"):
        staging.stage("a", f"{tmp_path}/more")
    # A retry stages the same ones.
    staging.stage("a", f"{tmp_path}/2")


def test_tables_count_as_outputs(staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrofill.outputs.staging.MAX_OUTPUTS", 3)
    monkeypatch.setattr(staging.tables, "outputs", lambda: {7: ("table:one", "table:two")})
    write(staging.stage("a", f"{tmp_path}/1"))
    assert len(staging.seal()[7]) == 3
    more = staging_of(8)
    monkeypatch.setattr(more.tables, "outputs", lambda: {8: ("table:one", "table:two")})
    for n in range(2):
        write(more.stage("a", f"{tmp_path}/more-{n}"))
    with pytest.raises(CannotStage, match="at most 3 outputs"):
        more.seal()


@pytest.mark.long
def test_all_outputs_of_a_run_fit_into_a_message(tmp_path: Path) -> None:
    one = tmp_path / ("\u65e5" * 80)
    few, many = staging_of(7), staging_of(8)
    for n in range(400):
        write(few.stage("a", f"{one}-{n}"))
    few.seal()
    for n in range(1000):
        write(many.stage("a", f"{one}-{n}"))
    with pytest.raises(CannotStage, match=r"have \d+,\d+ bytes; the limit is 200,000: stage their parent directory"):
        many.seal()


def test_a_task_that_still_writes_for_an_earlier_try_harms_no_later_one(staging: Staging, tmp_path: Path) -> None:
    target = f"{tmp_path}/day=1"
    first = staging.stage("a", target)
    staging.begin_try("a")
    second = staging.stage("a", target)
    Path(first).parent.mkdir()
    write(first, "late")
    write(second, "good")
    staging.seal()
    assert (sealed_folder(Path(target), key_of("", 7), 25) / "new" / "part-0").read_text() == "good"


def test_what_a_failed_try_staged_is_dropped(staging: Staging, tmp_path: Path) -> None:
    # Its path is another one at each try.
    first = staging.stage("a", f"{tmp_path}/load=1")
    write(first, "half")
    write(staging.stage("b", f"{tmp_path}/of-another"))
    staging.begin_try("a")
    assert not Path(first).exists()
    write(staging.stage("a", f"{tmp_path}/load=2"))
    assert sorted(staging.seal()[7]) == [f"{tmp_path}/load=2", f"{tmp_path}/of-another"]


@pytest.mark.parametrize("wrote", [False, True])
@pytest.mark.parametrize("partitions", [False, True])
def test_a_try_that_stages_nothing_publishes_nothing_of_the_one_before(
    staging: Staging, tmp_path: Path, wrote: bool, partitions: bool
) -> None:
    to = staging.stage_partitions("a", str(tmp_path), ["day=1"]) if partitions else staging.stage("a", f"{tmp_path}/1")
    if wrote:
        Path(to).mkdir()
        write(f"{to}/day=1")
    staging.begin_try("a")
    assert staging.seal() == {}
    # What the failed try wrote around is of no other task.
    assert staging_of(8).stage("b", f"{tmp_path}/day=1/inside")


def test_two_tasks_stage_partitions_of_one_directory(staging: Staging, tmp_path: Path) -> None:
    for task in ("a", "b"):
        to = staging.stage_partitions(task, str(tmp_path), [f"{task}/day=1"])
        Path(to, task).mkdir(parents=True)
        write(f"{to}/{task}/day=1", task)
    for task in ("a", "b"):
        assert Path(staging.staged(f"{tmp_path}/{task}/day=1"), "part-0").read_text() == task
    with pytest.raises(CannotStage, match="read each partition"):
        staging.staged(str(tmp_path))
    assert sorted(staging.seal()[7]) == [f"{tmp_path}/a/day=1", f"{tmp_path}/b/day=1"]
    for task in ("a", "b"):
        assert (sealed_folder(tmp_path / task / "day=1", key_of("", 7), 25) / "new" / "part-0").read_text() == task


def test_output_that_is_built_of_links_to_the_published_one_leaves_that_alone(staging: Staging, tmp_path: Path) -> None:
    published = tmp_path / "day=1"
    write(str(published), "old")
    (published / MARKER).write_text("of an earlier run")
    new = staging.stage("a", str(published))
    shutil.copytree(published, new, copy_function=os.link)
    staging.seal()
    assert (published / MARKER).read_text() == "of an earlier run"


def test_a_link_that_leads_somewhere_only_at_its_place_is_output(staging: Staging, tmp_path: Path) -> None:
    new = Path(staging.stage("a", f"{tmp_path}/day=1"))
    write(str(new))
    (new / "before").symlink_to("../day=0/part-0")
    assert staging.seal()


def test_a_path_that_is_not_utf8_is_told(staging: Staging) -> None:
    with pytest.raises(CannotStage, match=r"'/data/\\udce9' cannot be staged: its name is not UTF-8"):
        staging.stage("a", "/data/\udce9")


def test_a_task_that_wrote_elsewhere_is_told_so(staging: Staging, tmp_path: Path) -> None:
    staging.stage("a", f"{tmp_path}/day=1")
    with pytest.raises(CannotStage, match=r"task 'a' staged .* but wrote nothing there: write to the path"):
        staging.seal()


@pytest.mark.parametrize(
    ("path", "instead"),
    [("day=1/total.csv", "{stage:ROOT/day=1/total}/total.csv"), ("2013-01-01", "{stage:ROOT/2013-01-01}/2013-01-01")],
)
def test_a_task_that_wrote_a_file_is_told_where_to(staging: Staging, tmp_path: Path, path: str, instead: str) -> None:
    Path(staging.stage("a", f"{tmp_path}/{path}")).write_text("1")
    with pytest.raises(CannotStage) as told:
        staging.seal()
    assert str(told.value).endswith(f"like {instead.replace('ROOT', str(tmp_path))}"), told.value


def test_a_failed_attempt_leaves_nothing_and_touches_no_other(staging: Staging, tmp_path: Path) -> None:
    target = tmp_path / "day=1"
    write(staging.stage("a", str(target)))
    of_another = tmp_path / AREA / f"day=1@{key_of('', 7)}" / "2.publish-0" / "new"
    of_another.mkdir(parents=True)
    staging.discard()
    assert of_another.exists()
    assert sorted(path.name for path in (tmp_path / AREA / f"day=1@{key_of('', 7)}").iterdir()) == ["2.publish-0"]


def test_runs_of_one_attempt_stage_the_same_output_apart(tmp_path: Path) -> None:
    target = tmp_path / "latest"
    one, other = staging_of(7), staging_of(8)
    write(one.stage("a", str(target)), "of the first run")
    write(other.stage("a", str(target)), "of the second run")
    one.seal()
    other.discard()
    assert (sealed_folder(target, key_of("", 7), 25) / "new" / "part-0").read_text() == "of the first run"
    with pytest.raises(CannotStage, match="no task of this run has staged"):
        staging_of(9).staged(str(target))


def test_what_is_published_names_its_run_and_its_attempt(staging: Staging, tmp_path: Path) -> None:
    target = tmp_path / "day=1"
    write(staging.stage("a", str(target)))
    staging.seal()
    marker = json.loads((sealed_folder(target, key_of("", 7), 25) / "new" / MARKER).read_text())
    assert (marker["backfill_id"], marker["run_id"], marker["attempt"], marker["attempt_id"]) == ("b", 7, 2, 25)
