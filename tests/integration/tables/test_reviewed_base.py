"""Approved output is published onto the state that it was compared with, and nothing else.

The tests are a table: where it is published (two formats and directories) × what somebody changed during the review × single
runs or a range. Its first day is the one that is changed; the other ones are its neighbours, which are compared too.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from tests.support.lake import Attempt, Lake, Publisher, Shared, launch
from tests.support.tiers import some

from retrofill.driver.execute import Result
from retrofill.driver.publishing import publish_all
from retrofill.driver.session import Sessions
from retrofill.outputs import publication as of_folders
from retrofill.outputs.base import BaseChanged, base_of_folder
from retrofill.outputs.reviewed import remember
from retrofill.outputs.tables.changes import ReviewedRows
from retrofill.outputs.tables.publication import NotPermitted, Tables
from retrofill.protocol.launch import LaunchedRun
from retrofill.protocol.table_output import TableOutput
from retrofill.states import AttemptMode

Changes = Mapping[str, tuple[Callable[[Any], object], bool]]
DAYS = 3
KEEP_DAYS = 3
NUMBERS = itertools.count(1)


@dataclass
class Reviewed:
    """What an attempt has staged for a review, as its backfill's rows have it."""

    attempt: Attempt
    bases: dict[int, tuple[str, ...]]
    over_changes: frozenset[int] = frozenset()
    approvals: int = 0
    # For which review each run waits, and those that are published.
    review: dict[int, int] = field(default_factory=dict)
    ended: dict[int, Result] = field(default_factory=dict)

    def publish(self, *, force: bool = False) -> dict[int, Result]:
        """An approval: one publisher for all runs. Returns their results by the number of the run's day.

        As the services do it, a run that was not published waits with its new base.
        """
        self.approvals += 1
        runs = [self.published(run, force=force) for run in self.attempt.launch.runs]
        waiting = [run for run in runs if run.id not in self.ended]
        results = publish(self.attempt, waiting, [replace(r, over=True) for r in runs if r.id in self.ended])
        for id, result in results.items():
            if result.changed:
                self.bases[id], self.review[id] = result.bases, self.approvals
                self.over_changes |= {id}
            else:
                self.ended[id] = result
        return {number: results.get(run.id) or self.ended[run.id] for number, run in enumerate(runs)}

    def published(self, run: LaunchedRun, *, force: bool = False) -> LaunchedRun:
        return replace(
            run,
            publication=next(NUMBERS),
            accepted_attempt=self.attempt.launch.attempt_id,
            outputs=self.attempt.outputs[run.id],
            bases=() if force else self.bases[run.id],
            over_changes=force or run.id in self.over_changes,
            review=self.review.get(run.id, 0),
        )


def publish(
    attempt: Attempt,
    runs: list[LaunchedRun],
    siblings: Sequence[LaunchedRun] = (),
    permitted: Callable[[Sequence[LaunchedRun]], bool] = lambda _: True,
) -> dict[int, Result]:
    """The results by run id. ``siblings``: those that are published already. Raises ``NotPermitted``."""
    if not runs:
        return {}
    of_publisher = replace(
        attempt.launch,
        # An undo restores what was before the whole backfill.
        backfill_id=f"of run {attempt.run.id}",
        attempt_id=1000 + runs[0].publication,
        mode=AttemptMode.PUBLISH,
        runs=tuple(runs),
        siblings=tuple(siblings),
        keep_replaced_days=KEEP_DAYS,
    )

    def lost(why: str, _: bool) -> None:
        raise AssertionError(why)

    tables = Tables(of_publisher, cast(Sessions, attempt.sessions), permitted, lost)
    return {run.id: result for run, result in publish_all(of_publisher, attempt.launch.attempt_id, runs, tables)}


def reviewed(attempt: Attempt) -> Reviewed:
    """As a driver does whose host says that the backfill is reviewed."""
    attempt.launch = replace(attempt.launch, review=True)
    bases = remember(attempt.launch, attempt.piece, attempt.outputs, attempt.sessions.publisher)
    return Reviewed(attempt, bases)


class Target:
    """Where the days are published. ``content``: by day, what a reader sees."""

    # What somebody may do to the first day → whether that is a change.
    changes: ClassVar[Changes] = {}

    def __init__(self, lake: Lake, tmp_path: Path) -> None:
        self.lake, self.folder = lake, tmp_path

    def stage(self, run_id: int, notes: str, days: int) -> Attempt:
        """An attempt that has staged a row or file with each of the notes, for each of the days."""
        raise NotImplementedError

    def before(self) -> None:
        """Publish the days before, without a review."""
        for result in (
            Reviewed(attempt := self.stage(1, "old", DAYS), dict.fromkeys(range(1, 9), ())).publish().values()
        ):
            assert result.succeeded, attempt
        assert self.content() == ["old"] * DAYS

    def content(self) -> list[str]:
        raise NotImplementedError


def sql(statement: str) -> Callable[[Any], object]:
    def change(target: Any) -> None:
        target.lake.spark.sql(statement.format(target.lake.table)).collect()

    return change


def compact(target: Any) -> None:
    table = target.lake.table
    # A second file to be joined.
    sql("INSERT INTO {} VALUES (DATE'2013-01-09', 7, 'foreign')")(target)
    if target.lake.format == "delta":
        sql("OPTIMIZE {}")(target)
    else:
        options = "map('rewrite-all', 'true')"
        target.lake.spark.sql(
            f"CALL lake.system.rewrite_data_files(table => '{table}', options => {options})"
        ).collect()


def recreate(target: Any) -> None:
    """The same versions, by number, with other rows."""
    lake = target.lake
    sql("DROP TABLE {}")(target)
    lake.create(lake.table)
    for day in range(DAYS):
        sql(f"INSERT INTO {{}} VALUES (DATE'2013-01-0{day + 1}', 0, '{'old' if day else 'mine'}')")(target)


def changed_and_back(target: Any) -> None:
    sql("INSERT INTO {} VALUES (DATE'2013-01-01', 7, 'mine')")(target)
    sql("DELETE FROM {} WHERE n = 7")(target)


class Table(Target):
    changes: ClassVar[Changes] = {
        "nothing": (lambda _: None, False),
        "a row more": (sql("INSERT INTO {} VALUES (DATE'2013-01-01', 7, 'mine')"), True),
        "a row again": (sql("INSERT INTO {} VALUES (DATE'2013-01-01', 0, 'old')"), True),
        "a value": (sql("UPDATE {} SET note = 'mine' WHERE day = DATE'2013-01-01'"), True),
        "a null": (sql("UPDATE {} SET note = NULL WHERE day = DATE'2013-01-01'"), True),
        "emptied": (sql("DELETE FROM {} WHERE day = DATE'2013-01-01'"), True),
        "moved to another day": (sql("UPDATE {} SET day = DATE'2013-01-08' WHERE day = DATE'2013-01-01'"), True),
        "created again": (recreate, True),
        "another day": (sql("INSERT INTO {} VALUES (DATE'2013-01-09', 7, 'foreign')"), False),
        "written again": (sql("UPDATE {} SET note = 'old' WHERE day = DATE'2013-01-01'"), False),
        "compaction": (compact, False),
        "a column more": (sql("ALTER TABLE {} ADD COLUMNS (more string)"), False),
        "changed and back": (changed_and_back, False),
    }

    def stage(self, run_id: int, notes: str, days: int) -> Attempt:
        attempt = self.lake.attempt(run_id=run_id, runs=days)
        rows = [(f"2013-01-0{day + 1}", n, note) for day in range(days) for n, note in enumerate(notes.split())]
        attempt.staging.tables.stage("a", attempt.spark, attempt.rows(*rows), self.lake.table, "day")
        attempt.outputs = attempt.staging.seal()
        return attempt

    def content(self) -> list[str]:
        found = [each.partition(" ") for each in self.lake.content()]
        return [" ".join(sorted(note for day, _, note in found if day == str(n + 1))) for n in range(DAYS)]


def path(target: Any, *parts: str) -> Path:
    return Path(target.folder, "out", "day=1", *parts)


def write(*parts: str, text: str = "mine") -> Callable[[Any], object]:
    def change(target: Any) -> None:
        file = path(target, *parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return change


def as_before(target: Any) -> None:
    """Other rights, which make no other content."""
    path(target, "part-0").chmod(0o600)


def replaced(target: Any) -> None:
    shutil.rmtree(path(target))
    write("part-0", text="old")(target)


def moved_and_back(target: Any) -> None:
    # A name by way of the directory itself would be gone with it.
    path(target).rename(path(target).with_name("aside")).rename(path(target))


class Folder(Target):
    changes: ClassVar[Changes] = {
        "nothing": (lambda _: None, False),
        "a file more": (write("part-1"), True),
        "a file inside": (write("hour=1", "part-0"), True),
        "a file": (write("part-0", text="mine too"), True),
        "a file of the same size": (write("part-0", text="new"), True),
        "a file less": (lambda target: path(target, "part-0").unlink(), True),
        "a file's name": (lambda target: path(target, "part-0").rename(path(target, "part-7")), True),
        "written again": (replaced, True),
        "removed": (lambda target: shutil.rmtree(path(target)), True),
        "another day": (lambda target: write("..", "day=9", "part-0")(target), False),
        "rights": (as_before, False),
        "moved and back": (moved_and_back, False),
    }

    def stage(self, run_id: int, notes: str, days: int) -> Attempt:
        attempt = self.lake.attempt(run_id=run_id, runs=days)
        for day in range(days):
            new = Path(attempt.staging.stage("a", str(self.folder / "out" / f"day={day + 1}"), day))
            new.mkdir()
            for number, note in enumerate(notes.split()):
                (new / f"part-{number}").write_text(note)
        attempt.outputs = attempt.staging.seal()
        return attempt

    def content(self) -> list[str]:
        days = [self.folder / "out" / f"day={n + 1}" for n in range(DAYS)]
        files = [sorted(file for file in day.rglob("part-*") if file.is_file()) for day in days]
        return [" ".join(file.read_text() for file in of_day) for of_day in files]


TARGETS = {"iceberg": Table, "delta": Table, "folder": Folder}
CELLS = [(format, change, runs) for format, kind in TARGETS.items() for change in kind.changes for runs in (1, DAYS)]
# The others take the same way in each format. Single runs and ranges take turns in tables.
SHORT = [
    *(("iceberg", change) for change in ("another day", "a value", "emptied")),
    *(("folder", change) for change in ("nothing", "another day", "a file", "removed", "rights")),
]
IN_MAKE_TEST = [
    (format, change, runs)
    for number, (format, change) in enumerate(SHORT)
    for runs in ((1, DAYS) if format == "folder" else ((1, DAYS)[number % 2],))
]


class NoLake:
    """Attempts that use no Spark."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def attempt(self, run_id: int, runs: int) -> Attempt:
        return Attempt(Shared(None, None), launch(range(run_id, run_id + runs), next(self._ids), 1, 0))


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """One of ``TARGETS``, with three days that were published before."""
    if request.param == "folder":
        made: Target = Folder(cast(Lake, NoLake()), tmp_path)
        made.before()
        yield made
        return
    with Lake(request.getfixturevalue("table_server"), request.param, tmp_path) as lake:
        made = Table(lake, tmp_path)
        made.before()
        yield made


@pytest.mark.spark
@pytest.mark.parametrize(
    ("target", "change", "runs"),
    some(CELLS, *IN_MAKE_TEST),
    indirect=["target"],
    ids=lambda value: {1: "single", DAYS: "range"}.get(value),
)
def test_only_what_was_compared_is_replaced(target: Target, change: str, runs: int) -> None:
    staged = reviewed(target.stage(10, "new and more", runs))
    apply, is_change = target.changes[change]
    apply(target)
    corrected = target.content()
    results = staged.publish()
    # As a plain overwrite of those days would have it.
    new = " ".join(sorted(["new", "and", "more"])) if isinstance(target, Table) else "new and more"
    published = [day > 0 or not is_change for day in range(runs)]
    expected = [new if day < runs and published[day] else corrected[day] for day in range(DAYS)]
    assert target.content() == expected
    assert [(result.succeeded, bool(result.changed)) for result in results.values()] == [
        (True, not p) for p in published
    ]
    assert not any(each.replaced_change for result in results.values() for each in result.published)
    # A second approval is of what the correction left; the others are as they are.
    second = staged.publish()
    assert not any(result.changed for result in second.values()), second
    assert target.content()[0] == new


@pytest.mark.spark
@pytest.mark.parametrize("target", some(TARGETS, "folder"), indirect=True)
def test_what_changes_again_is_reviewed_again_until_it_is_forced(target: Target) -> None:
    staged = reviewed(target.stage(10, "new", 1))
    change = target.changes["a row more" if isinstance(target, Table) else "a file more"][0]
    for number in range(2):
        if number and isinstance(target, Folder):
            path(target, "part-1").unlink()
        change(target)
        held = target.content()
        assert staged.publish()[0].changed == staged.attempt.outputs[10]
        assert target.content() == held
    target.changes["a value" if isinstance(target, Table) else "a file"][0](target)
    assert staged.publish(force=True)[0].published
    assert target.content() == ["new", "old", "old"]


@pytest.mark.spark
@pytest.mark.parametrize("target", some(TARGETS, "folder"), indirect=True)
def test_an_empty_place_that_somebody_fills_is_a_change(target: Target) -> None:
    if isinstance(target, Table):
        sql("DELETE FROM {} WHERE day = DATE'2013-01-01'")(target)
        fill = target.changes["a row more"][0]
    else:
        shutil.rmtree(path(target))
        fill = write("part-0")
    staged = reviewed(target.stage(10, "new", 1))
    fill(target)
    assert staged.publish()[0].changed
    assert target.content() == ["mine", "old", "old"]


@pytest.mark.spark
@pytest.mark.parametrize("target", some(TARGETS, "folder"), indirect=True)
def test_a_publisher_that_follows_a_lost_one_finds_its_own_output(target: Target) -> None:
    """What the lost one has published is no change by somebody, and is not published again."""
    staged = reviewed(target.stage(10, "new", 1))
    (run,) = staged.attempt.launch.runs
    assert publish(staged.attempt, [staged.published(run)])[run.id].published
    found = publish(staged.attempt, [staged.published(run)])[run.id]
    assert (found.succeeded, found.changed) == (True, ())
    assert target.content() == ["new", "old", "old"]


@pytest.mark.spark
@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
@pytest.mark.parametrize("changed", some(["table", "folder"], "folder"))
def test_of_several_outputs_none_is_published_if_one_was_changed(lake: Lake, tmp_path: Path, changed: str) -> None:
    table, folder = Table(lake, tmp_path), Folder(lake, tmp_path)
    table.before()
    folder.before()
    attempt = lake.attempt(run_id=10)
    new = Path(attempt.staging.stage("b", str(tmp_path / "out" / "day=1")))
    new.mkdir()
    (new / "part-0").write_text("new")
    attempt.stage(lake.table, "new")
    staged = reviewed(attempt)
    if changed == "table":
        sql("UPDATE {} SET note = 'mine' WHERE day = DATE'2013-01-01'")(table)
    else:
        write("part-0")(folder)
    (result,) = staged.publish().values()
    (which,) = result.changed
    assert (TableOutput.of(which) is not None) == (changed == "table")
    seen = [table.content()[0], folder.content()[0]]
    assert seen == (["mine", "old"] if changed == "table" else ["old", "mine"])
    assert staged.publish()[0].published
    assert [table.content()[0], folder.content()[0]] == ["new", "new"]


@pytest.mark.spark
@pytest.mark.parametrize("theirs", some(["nothing", "a value"], "nothing"))
@pytest.mark.parametrize("runs", some([1, DAYS], DAYS))
@pytest.mark.parametrize("target", some(["iceberg", "delta"], "delta"), indirect=True)
def test_what_a_publisher_published_that_was_lost_between_two_tables_is_no_change(
    target: Table, runs: int, theirs: str
) -> None:
    """``theirs``: what somebody does to the table that it has not come to."""
    lake, other = target.lake, Table(target.lake, target.folder)
    attempt = lake.attempt(run_id=10, runs=runs)
    rows = attempt.rows(*((f"2013-01-0{day + 1}", 0, "new") for day in range(runs)))
    second = lake.create(f"{lake.table}_second")
    for table in (lake.table, second):
        attempt.staging.tables.stage("a", attempt.spark, rows, table, "day")
    attempt.outputs = attempt.staging.seal()
    staged = reviewed(attempt)
    asked = itertools.count()
    with pytest.raises(NotPermitted):
        launched = [staged.published(run) for run in attempt.launch.runs]
        publish(attempt, launched, permitted=lambda _: next(asked) == 0)
    assert (other.content()[0], lake.content(second)) == ("new", []), "the first table is published"
    if theirs != "nothing":
        lake.spark.sql(f"INSERT INTO {second} VALUES (DATE'2013-01-01', 7, 'mine')").collect()
    results = staged.publish()
    changed = [[getattr(TableOutput.of(each), "table", None) for each in result.changed] for result in results.values()]
    assert changed == [[second] if theirs != "nothing" and day == 0 else [] for day in range(runs)]
    assert all(result.published for result in staged.publish().values())
    new = [f"{day + 1} new" for day in range(runs)]
    assert (lake.content(second), target.content()) == (new, ["new"] * runs + ["old"] * (DAYS - runs))
    lake.spark.sql(f"DROP TABLE {second}").collect()


@pytest.mark.spark
@pytest.mark.parametrize("target", ["iceberg", "delta"], indirect=True)
def test_a_change_between_the_comparison_and_the_commit(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg refuses the commit, so it is found. Delta does not if the change is in the same instant, and says so later."""
    staged = reviewed(target.stage(10, "new", 1))
    compare, changes = ReviewedRows.changed, [target.changes["a row more"][0]]

    def then_change(self: ReviewedRows, *given: Any) -> dict[int, BaseChanged]:
        found = compare(self, *given)
        while changes:
            changes.pop()(target)
        return found

    monkeypatch.setattr(ReviewedRows, "changed", then_change)
    (result,) = staged.publish().values()
    if target.lake.format == "iceberg":
        assert (bool(result.changed), target.content()[0]) == (True, "mine old")
    else:
        assert [each.replaced_change for each in result.published] == [True]
        assert target.content()[0] == "new"
        undo = restore(target.lake, 11, 10)
        assert Publisher(undo).finish() is None
        assert target.content()[0] == "mine old"


def test_a_change_of_a_directory_before_the_exchange_is_told(tmp_path: Path) -> None:
    new = of_folders.own_folder(tmp_path / "day", "7-a") / "w" / "new"
    new.mkdir(parents=True)
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "part-0").write_text("old")
    base = base_of_folder(tmp_path / "day")
    of_folders.seal([of_folders.Written(new.parent, tmp_path / "day", "7-a", {"run": "7-a"})], 25)
    publication = of_folders.Publication(tmp_path / "day", "7-a", 25, 1, KEEP_DAYS, base)
    of_folders.refuse_changed_base(publication)
    steps = of_folders.steps(publication)
    while next(steps) != "publish:exchange":
        pass
    (tmp_path / "day" / "part-0").write_text("mine")
    with pytest.raises(StopIteration) as ended:
        while True:
            next(steps)
    assert ended.value.value is True
    (kept,) = (tmp_path / "_retrofill" / "kept").rglob("part-0")
    assert kept.read_text() == "mine"


def test_the_base_of_a_directory_with_odd_contents(tmp_path: Path) -> None:
    """Links, names that are no text, deep and empty directories: each is found, and none is followed."""
    day = tmp_path / "day"
    day.mkdir()
    seen = {base_of_folder(day)}
    for make in (
        lambda: Path(os.fsdecode(os.fsencode(day) + b"/\xff")).touch(),
        lambda: (day / "gone").symlink_to("nowhere"),
        lambda: (day / "around").symlink_to(day),
        lambda: (day / "a" / "b" / "c").mkdir(parents=True),
        lambda: (day / "a" / "b" / "c" / "part-0").touch(),
        lambda: (day / "_retrofill.json").write_text("{}"),
    ):
        make()
        seen.add(base_of_folder(day))
        assert base_of_folder(day) in seen
    assert len(seen) == 6
    (day / "empty").mkdir()
    assert base_of_folder(day) in seen


def restore(lake: Lake, run_id: int, undoes: int) -> Attempt:
    """An attempt that has staged what a run of the first day replaced."""
    attempt = lake.attempt(run_id=run_id)
    run = replace(attempt.launch.runs[0], restores=undoes)
    attempt = Attempt(attempt.sessions, replace(attempt.launch, runs=(run,), keep_replaced_days=KEEP_DAYS))
    undone = TableOutput(lake.table, f"{lake.table}__gone", "day", "date", lake.format)
    attempt.staging.tables.restore("restore", attempt.spark, undone)
    attempt.outputs = attempt.staging.seal()
    return attempt


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("target", some(["iceberg", "delta"], "iceberg"), indirect=True)
def test_a_reviewed_undo_restores_over_a_change_only_if_that_was_approved(target: Target) -> None:
    wrong = Reviewed(target.stage(10, "wrong", 1), {10: ()})
    assert wrong.publish()[0].published
    staged = reviewed(restore(target.lake, 11, 10))
    target.changes["a row more"][0](target)
    assert staged.publish()[0].changed
    assert target.content()[0] == "mine wrong"
    assert staged.publish()[0].published
    assert target.content() == ["old", "old", "old"]
