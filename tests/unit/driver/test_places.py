"""A directory belongs to one interval: what an attempt may stage and publish beside what others have.

Axes: where the other one is (the same directory, above, below) × how far it got (published, sealed) × whose it is × how
the path is written × which of the ways to stage. In each, what the other one has must not change.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

import pytest
from tests.unit.driver import launches

from retrofill.driver.context import Run, run_of
from retrofill.driver.execute import Result
from retrofill.driver.preparing import Fields
from retrofill.driver.publishing import publish_all
from retrofill.driver.session import Sessions
from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.kept import AREA, MARKER, key_of
from retrofill.outputs.places import PlaceTaken, owned, release
from retrofill.outputs.publication import Publication, publish
from retrofill.outputs.restoring import restore
from retrofill.outputs.staging import Staging
from retrofill.outputs.tables.publication import Tables
from retrofill.protocol.launch import Launch, Piece

DAY = timedelta(days=1)
FIRST = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Who:
    """An attempt at one or several intervals, each of ``length``, from ``start`` on. By default it has the first run's id."""

    run: int
    start: datetime = FIRST
    length: timedelta = DAY
    count: int = 1
    pipeline: str = "p"
    zone: str = "UTC"
    installation: str = "here"
    undoes: int | None = None
    attempt: int | None = None

    @property
    def launch(self) -> Launch:
        runs = []
        for n in range(self.count):
            start = self.start + n * self.length
            offsets = [each.astimezone(ZoneInfo(self.zone)).utcoffset() for each in (start, start + self.length)]
            runs.append(
                launches.run_of(
                    self.run + n,
                    start.astimezone(UTC).isoformat(),
                    (start + self.length).astimezone(UTC).isoformat(),
                    utc_offsets=[each.total_seconds() for each in offsets if each is not None],
                    restores=self.undoes,
                )
            )
        return launches.launch_of(
            *runs,
            pipeline={"name": self.pipeline, "timezone": self.zone},
            backfill_id=f"of {self.run}",
            attempt_id=self.attempt or self.run,
            installation=self.installation,
            keep_replaced_days=7,
        )


class Attempt:
    """What an attempt stages of its only run, or of all in a range."""

    def __init__(self, who: Who) -> None:
        self.launch = who.launch
        self.staging = Staging(self.launch, Piece(self.launch.runs))
        self.run: Run = run_of(self.launch, Piece(self.launch.runs), None, self.staging, "a")  # type: ignore[arg-type]
        self.outputs: dict[int, tuple[str, ...]] = {}

    def write(self, path: Path | str, number: int = 0) -> Attempt:
        folder = Path(self.run.stage(str(path), self.run.intervals[number]))
        folder.mkdir()
        (folder / "part-0").write_text(f"run {self.launch.runs[number].id}")
        return self

    def seal(self) -> Attempt:
        try:
            self.outputs = self.staging.seal()
        except CannotStage:
            self.staging.discard()
            raise
        return self

    def publish(self) -> Attempt:
        for run in self.launch.runs:
            for output in self.outputs.get(run.id, ()):
                key = key_of(self.launch.installation, run.id)
                publish(Publication(Path(output), key, self.launch.attempt_id, 0, self.launch.keep_replaced_days))
        return self


def staged(who: Who, path: Path | str) -> Attempt:
    return Attempt(who).write(path).seal()


def published(who: Who, path: Path | str) -> Attempt:
    return staged(who, path).publish()


def seen(root: Path) -> dict[str, str]:
    """What a reader of all that is below sees."""
    files = (path for path in root.rglob("part-*") if AREA not in path.parts)
    return {str(path.parent.relative_to(root)): path.read_text() for path in files}


MINE = Who(7)
ANOTHER_INSTALLATION = replace(MINE, run=3, installation="there")
# Whose directory it is, and whether the day of MINE may replace it when it is published, and when it is only staged.
OWNERS = {
    "the same interval": (replace(MINE, run=6), True, True),
    "the same interval, by an installation that was set up anew": (ANOTHER_INSTALLATION, True, True),
    "the next day": (Who(6, FIRST + DAY), False, False),
    "an hour of the day, before the schedule was changed": (Who(6, FIRST + DAY / 2, DAY / 24), True, False),
    "the month": (Who(6, FIRST, 31 * DAY), False, False),
    "the day in another zone": (Who(6, FIRST - DAY / 24, zone="Europe/Berlin"), False, False),
    "another pipeline's same interval": (Who(6, pipeline="q"), False, False),
}
# Where the other one is, and where MINE is to be published.
RELATIONS = {"the same": ("t", "t"), "above": ("t", "t/x/y"), "below": ("t/x/y", "t")}


@pytest.mark.parametrize("how_far", ["published", "staged"])
@pytest.mark.parametrize(("theirs", "mine"), RELATIONS.values(), ids=RELATIONS)
@pytest.mark.parametrize(("owner", "replaced", "beside"), OWNERS.values(), ids=OWNERS)
def test_who_may_publish_where_others_are(
    tmp_path: Path, owner: Who, replaced: bool, beside: bool, theirs: str, mine: str, how_far: str
) -> None:
    other = staged(owner, tmp_path / theirs)
    if how_far == "published":
        other.publish()
    before = seen(tmp_path)
    if replaced if how_far == "published" else beside:
        published(MINE, tmp_path / mine)
        assert seen(tmp_path)[mine] == "run 7"
        return
    with pytest.raises(PlaceTaken, match=rf"which run {owner.run} has {how_far} there: ") as caught:
        published(MINE, tmp_path / mine)
    assert "\n" not in str(caught.value)
    assert seen(tmp_path) == before
    other.publish()
    assert seen(tmp_path) == {theirs: f"run {owner.run}"}


def test_it_says_where_whose_and_what_to_do(tmp_path: Path) -> None:
    published(Who(6, FIRST + DAY), tmp_path / "t")
    with pytest.raises(PlaceTaken) as caught:
        published(MINE, tmp_path / "t")
    assert str(caught.value) == (
        f"{tmp_path}/t belongs to the interval 2024-01-02 of pipeline p, which run 6 has published there: put "
        "the whole interval into the path, like {interval.start:%Y-%m-%d}, or call run.stage_partitions, or give it up with "
        f"'retrofill places release {tmp_path}/t'"
    )
    with pytest.raises(PlaceTaken, match="two pipelines cannot share a directory"):
        published(Who(8, FIRST + DAY, pipeline="q"), tmp_path / "t")
    staged(Who(9), tmp_path / "s")
    with pytest.raises(PlaceTaken, match=f"'retrofill places release --staged {tmp_path}/s'"):
        published(Who(10, FIRST + DAY), tmp_path / "s")


# Names of the directory ``of/t``, to which ``link/t`` leads too.
SPELLINGS = {
    "as it is": "{root}/of/t",
    "a slash at the end": "{root}/of/t/",
    "two slashes": "{root}//of//t",
    "a dot": "{root}/of/./t",
    "a URI": "file:{root}/of/t",
    "a URI with an authority": "file://localhost{root}/of/t",
    "a link on the way": "{root}/link/t",
    "a link on the way of a URI": "file://{root}/link/t",
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("how_far", ["published", "staged", "in the same range"])
def test_a_directory_is_the_same_whatever_it_is_called(tmp_path: Path, spelling: str, how_far: str) -> None:
    target = tmp_path / "of" / "t"
    target.parent.mkdir()
    (tmp_path / "link").symlink_to("of")
    path = spelling.format(root=tmp_path)
    if how_far == "in the same range":
        attempt = Attempt(Who(6, count=2)).write(target)
        with pytest.raises(CannotStage, match="is already the output of another interval"):
            attempt.write(path, 1)
        return
    other = staged(Who(6, FIRST + DAY), target)
    if how_far == "published":
        other.publish()
    with pytest.raises(PlaceTaken):
        published(MINE, path)
    other.publish()
    assert seen(tmp_path / "of") == {"t": "run 6"}


def test_one_that_is_mounted_twice_is_found_by_what_is_in_it(tmp_path: Path) -> None:
    target, mounted = tmp_path / "data" / "t", tmp_path / "mounted"
    target.parent.mkdir()
    mounted.mkdir()
    if subprocess.run(["mount", "--bind", target.parent, mounted], capture_output=True).returncode:
        pytest.skip("this user may not mount")
    try:
        published(Who(6, FIRST + DAY), target)
        with pytest.raises(PlaceTaken):
            published(MINE, mounted / "t")
        attempt = Attempt(Who(9, count=2)).write(tmp_path / "data" / "u").write(mounted / "u", 1)
        with pytest.raises(PlaceTaken):
            attempt.seal()
    finally:
        subprocess.run(["umount", mounted], check=True)


@pytest.mark.parametrize("names", [("d", "d"), ("d", "./d"), ("d", "d/"), ("d", "d//"), ("a", "a/b"), ("a/b", "a")])
def test_partitions_of_two_intervals_are_apart(tmp_path: Path, names: tuple[str, str]) -> None:
    attempt = Attempt(Who(6, count=2))
    with pytest.raises(CannotStage, match=r"two intervals have the same partition|one contains the other"):
        attempt.staging.stage_partitions("a", str(tmp_path), names)
    # The refusal leaves nothing.
    write_partitions(attempt, tmp_path, ("x", "y"))
    assert seen(tmp_path) == {"x": "x", "y": "y"}


@pytest.mark.parametrize("name", ["", "/tmp/elsewhere"])
def test_a_partition_is_in_its_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(CannotStage, match="is no directory in another"):
        Attempt(MINE).staging.stage_partitions("a", str(tmp_path), [name])


def write_partitions(attempt: Attempt, root: Path, names: tuple[str, ...]) -> None:
    to = Path(attempt.staging.stage_partitions("a", str(root), names))
    for name in names:
        (to / name).mkdir(parents=True)
        (to / name / "part-0").write_text(name)
    attempt.seal().publish()


def test_one_partition_that_is_taken_refuses_the_range_and_each_interval_alone_goes_on(tmp_path: Path) -> None:
    published(Who(3, FIRST - DAY), tmp_path / "y")
    with pytest.raises(PlaceTaken, match=f"{tmp_path}/y belongs to"):
        write_partitions(Attempt(Who(6, count=3)), tmp_path, ("x", "y", "z"))
    write_partitions(Attempt(Who(9)), tmp_path, ("x",))
    with pytest.raises(PlaceTaken):
        write_partitions(Attempt(Who(10, FIRST + DAY)), tmp_path, ("y",))
    write_partitions(Attempt(Who(11, FIRST + 2 * DAY)), tmp_path, ("z",))
    assert seen(tmp_path) == {"x": "x", "y": "run 3", "z": "z"}


def test_of_four_days_at_once_that_stage_one_directory_one_is_published_and_the_others_are_told(tmp_path: Path) -> None:
    """A script with ``partitionBy`` of which each run stages the root."""
    days = [Who(6 + n, FIRST + n * DAY) for n in range(4)]
    attempts = [Attempt(day).write(tmp_path / "root") for day in days]
    # The third is ready first.
    attempts[2].seal().publish()
    for attempt in (attempts[0], attempts[1], attempts[3]):
        with pytest.raises(PlaceTaken, match=r"interval 2024-01-03 of pipeline p, which run 8 has published"):
            attempt.seal()
    assert seen(tmp_path) == {"root": "run 8"}
    # The next attempt is told before it computes.
    for n in (0, 1, 3):
        with pytest.raises(PlaceTaken):
            Attempt(replace(days[n], run=20 + n)).run.stage(f"{tmp_path}/root")


def test_what_a_task_still_writes_is_left_alone_by_the_publication_of_another_interval(tmp_path: Path) -> None:
    writing = Attempt(MINE).write(tmp_path / "t")
    published(Who(8, FIRST + DAY), tmp_path / "t")
    assert Path(writing.run.staged(f"{tmp_path}/t"), "part-0").exists()


def test_a_later_attempt_at_the_interval_publishes_over_what_a_lost_one_left(tmp_path: Path) -> None:
    Attempt(MINE).write(tmp_path / "t")
    staged(replace(MINE, attempt=8), tmp_path / "t")
    published(replace(MINE, attempt=9), tmp_path / "t")
    assert seen(tmp_path) == {"t": "run 7"}


def test_a_directory_that_is_nobodys_is_replaced(tmp_path: Path) -> None:
    for name, marker in {"none": None, "not ours": "text", "older": '{"run": "1-x"}', "odd": '{"pipeline": 1}'}.items():
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "part-9").write_text("of the user")
        if marker is not None:
            (tmp_path / name / MARKER).write_text(marker)
            (tmp_path / name / "inside" / MARKER).write_text(marker)
        published(MINE, tmp_path / name)
        assert seen(tmp_path)[name] == "run 7"


def test_accepted_output_does_not_replace_what_became_anothers_meanwhile(tmp_path: Path) -> None:
    waiting = staged(Who(6, FIRST + DAY), tmp_path / "t")
    hidden = (tmp_path / AREA).rename(tmp_path / "hidden")
    published(MINE, tmp_path / "t")
    for each in hidden.iterdir():
        each.rename(tmp_path / AREA / each.name)
    result = _published(waiting.launch, 6, waiting.outputs[6])
    assert result.error is not None and result.error.type == "PlaceTaken"
    assert seen(tmp_path) == {"t": "run 7"}
    # It no longer keeps the owner from the place.
    published(replace(MINE, run=8), tmp_path / "t")
    assert seen(tmp_path) == {"t": "run 8"}


def given_up(path: Path, *, staged: bool = False) -> list[str]:
    found = sorted(owned(path, staged=staged), key=lambda each: each.place)
    for each in found:
        release(each)
    return [f"{each.place}: {each.whose}" for each in found]


def _published(launch: Launch, attempt: int, outputs: tuple[str, ...]) -> Result:
    """The result of publishing the launch's only run."""
    tables = Tables(launch, cast(Sessions, None), lambda _: False, pytest.fail)
    ((_, result),) = publish_all(launch, attempt, [replace(launch.runs[0], outputs=outputs)], tables)
    return result


def undone(who: Who, undoes: Who, path: Path) -> None:
    launch = replace(who, undoes=undoes.run).launch
    launch = replace(launch, runs=(replace(launch.runs[0], outputs=(str(path),)),))
    staging = Staging(launch, Piece(launch.runs))
    restore(launch, Piece(launch.runs), staging, pytest.fail, "restore")
    (outputs,) = staging.seal().values()
    result = _published(launch, launch.attempt_id, outputs)
    assert result.succeeded, result.error


@pytest.mark.parametrize("times", [1, 2])
def test_a_directory_belongs_to_nobody_once_what_was_published_first_is_undone(tmp_path: Path, times: int) -> None:
    published(MINE, tmp_path / "t")
    for n in range(times):  # the second one as if the first had failed after it was published
        undone(replace(MINE, run=8 + n), MINE, tmp_path / "t")
    published(Who(10, FIRST + DAY), tmp_path / "t")
    assert seen(tmp_path) == {"t": "run 10"}


@pytest.mark.parametrize("times", [1, 2])
def test_an_undo_gives_a_directory_back_to_whom_it_belonged(tmp_path: Path, times: int) -> None:
    hour, other = Who(6, FIRST, DAY / 24), Who(12, FIRST + DAY / 24, DAY / 24)
    published(hour, tmp_path / "t")
    published(MINE, tmp_path / "t")
    for n in range(times):
        undone(replace(MINE, run=8 + n), MINE, tmp_path / "t")
    assert seen(tmp_path) == {"t": "run 6"}
    with pytest.raises(PlaceTaken):
        published(other, tmp_path / "t")
    published(replace(hour, run=13), tmp_path / "t")


def test_an_undo_does_not_take_others_along_that_were_published_inside_since(tmp_path: Path) -> None:
    published(MINE, tmp_path / "t")
    given_up(tmp_path / "t")
    published(Who(8, FIRST + DAY), tmp_path / "t" / "day=2")
    with pytest.raises(PlaceTaken, match="contains"):
        undone(replace(MINE, run=9), MINE, tmp_path / "t")
    assert seen(tmp_path) == {"t": "run 7", "t/day=2": "run 8"}


def test_what_is_given_up_may_be_anothers_and_can_still_be_undone(tmp_path: Path) -> None:
    for name in ("t/x", "t/y", "neighbour"):
        published(MINE, tmp_path / name)
    assert given_up(tmp_path / "t") == [
        f"{tmp_path}/t/{name}: the interval 2024-01-01 of pipeline p, which run 7 has published there"
        for name in ("x", "y")
    ]
    undone(replace(MINE, run=8), MINE, tmp_path / "t" / "x")
    published(Who(10, FIRST + DAY), tmp_path / "t" / "y")
    with pytest.raises(PlaceTaken):
        published(Who(11, FIRST + DAY), tmp_path / "neighbour")
    assert given_up(tmp_path / "nothing there") == []


def test_what_is_staged_is_given_up_only_on_request(tmp_path: Path) -> None:
    staged(MINE, tmp_path / "t")
    assert given_up(tmp_path / "t") == []
    assert len(given_up(tmp_path / "t", staged=True)) == 1
    published(Who(8, FIRST + DAY), tmp_path / "t")


@pytest.mark.parametrize("delete", ["the marker", "the directory"])
def test_a_directory_is_given_up_by_deleting_its_marker_or_itself_too(tmp_path: Path, delete: str) -> None:
    published(MINE, tmp_path / "t")
    (tmp_path / "t" / MARKER).unlink()
    if delete == "the directory":
        (tmp_path / "t").rename(tmp_path / "elsewhere")
    published(Who(8, FIRST + DAY), tmp_path / "t")


LOS_ANGELES, LORD_HOWE = "America/Los_Angeles", "Australia/Lord_Howe"
# The zone, how long an interval is, and when one of the repeated part begins for the first and the second time.
REPEATED = {
    "an hour": (LOS_ANGELES, timedelta(hours=1), "2023-11-05T08:00:00+00:00", "2023-11-05T09:00:00+00:00"),
    "a quarter": (LOS_ANGELES, timedelta(minutes=15), "2023-11-05T08:45:00+00:00", "2023-11-05T09:45:00+00:00"),
    "half an hour": (LORD_HOWE, timedelta(minutes=30), "2024-04-06T14:30:00+00:00", "2024-04-06T15:00:00+00:00"),
}


@pytest.mark.parametrize("way", ["function", "script"])
@pytest.mark.parametrize("how_far", ["published", "staged", "in the same range", "partitions of one range"])
@pytest.mark.parametrize(("zone", "length", "first", "second"), REPEATED.values(), ids=REPEATED)
def test_an_hour_that_the_clock_shows_twice_has_two_directories(
    tmp_path: Path, zone: str, length: timedelta, first: str, second: str, how_far: str, way: str
) -> None:
    moments = [datetime.fromisoformat(each) for each in (first, second)]
    one, other = (Who(6 + n, at, length, zone=zone) for n, at in enumerate(moments))
    both = replace(one, length=moments[1] - moments[0], count=2)
    named = "hour={interval.start:%Y-%m-%d-%H%M}"
    with pytest.raises(CannotStage, match=r"the clock shows .* twice, so add its offset to the path \(%z\)"):
        if how_far == "partitions of one range":
            Attempt(both).run.stage_partitions(str(tmp_path), named)
        elif how_far == "in the same range":
            attempt = Attempt(both)
            for number in (0, 1):
                attempt.write(tmp_path / named.format(interval=attempt.run.intervals[number]), number)
        else:
            before = by(way, one, f"{tmp_path}/{named}")
            if how_far == "published":
                before.publish()
            by(way, other, f"{tmp_path}/{named}")
    for who in (one, other):
        by(way, replace(who, run=who.run + 10), f"{tmp_path}/with=%z/{named}".replace("%M", "%M%z")).publish()
    assert len(seen(tmp_path / "with=%z")) == 2


def by(way: str, who: Who, path: str) -> Attempt:
    """Stage by ``{stage:PATH}`` of a script, or in a task."""
    attempt = Attempt(who)
    if way == "function":
        return attempt.write(path.format(interval=attempt.run.interval)).seal()
    fields = Fields(attempt.launch, Piece(attempt.launch.runs), attempt.staging, "a")
    (folder,) = fields.fill([f"{{stage:{path}}}"])
    Path(folder).mkdir(parents=True)
    Path(folder, "part-0").write_text(f"run {who.run}")
    return attempt.seal()


def test_a_path_with_the_hour_only_belongs_to_the_first_day(tmp_path: Path) -> None:
    days = [Who(6 + n, FIRST + n * DAY, DAY / 24) for n in range(2)]
    by("script", days[0], f"{tmp_path}/hour={{interval.start:%H}}").publish()
    with pytest.raises(PlaceTaken, match="put the whole interval into the path"):
        by("script", days[1], f"{tmp_path}/hour={{interval.start:%H}}")


def test_the_marker_names_the_interval_in_the_pipelines_zone(tmp_path: Path) -> None:
    published(Who(6, datetime(2023, 11, 5, 8, tzinfo=UTC), timedelta(hours=1), zone=LOS_ANGELES), tmp_path / "t")
    marker = json.loads((tmp_path / "t" / MARKER).read_text())
    assert (marker["interval_start"], marker["interval_end"]) == (
        "2023-11-05T01:00:00-07:00",
        "2023-11-05T01:00:00-08:00",
    )
