"""Publishers of groups, stopped before each of their steps and woken at each step of their successors.

The code under test is the real one (``retrofill.outputs.tables.publication.steps``); only the tables are in memory: one
decides as Delta's log does, the other as Iceberg's validation does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from tests.support.lake import FIRST, launch
from tests.support.tiers import some

from retrofill.outputs.tables import publication as module
from retrofill.outputs.tables.group import Group, groups_of
from retrofill.outputs.tables.protocol import Burned, Looked, NotPublished
from retrofill.outputs.tables.publication import NotPermitted, TablePublication, TableResult, steps
from retrofill.protocol.facts import ErrorInfo
from retrofill.protocol.launch import LaunchedRun
from retrofill.protocol.table_output import TableOutput

RUNS = 4
UNFIT = ErrorInfo("PublishedAgain", "changed")


class Missing(AnalysisException):
    """Spark's error for a table that does not exist."""

    def getCondition(self) -> str:
        return "TABLE_OR_VIEW_NOT_FOUND"

    getErrorClass = getCondition


class Conflict(Exception):
    """Somebody else has committed; another try may succeed."""


@dataclass
class World:
    """A table in memory. ``rows``: who wrote each interval's, in order. ``refused``: runs whose rows it never takes."""

    refused: Collection[int] = ()
    log: list[tuple[str, Group]] = field(default_factory=list)
    rows: dict[int, list[str]] = field(default_factory=lambda: {n: ["before"] for n in range(RUNS)})
    dropped: set[str] = field(default_factory=set)
    owner: str = ""
    between: Callable[[], object] = int
    """What happens once, after a publisher has looked for a burn and before it burns the group itself."""

    def write(self, group: Group) -> str:
        self.log.append(("commit", group))
        for run in group.runs:
            self.rows[number(run)].append(f"attempt {group.attempt}")
        return str(len(self.log))

    def table(self, staged: str) -> World:
        if staged in self.dropped:
            raise Missing(staged)
        return self

    def where(self, _: str) -> World:
        return self

    def drop(self, *_: str) -> World:
        return self

    @property
    def catalog(self) -> World:
        return self

    def tableExists(self, staged: str) -> bool:
        return staged not in self.dropped


def number(run: LaunchedRun) -> int:
    """Which of the intervals it is for."""
    return (run.interval_start - FIRST).days


class Base:
    fixed: bool
    fenced = True

    def __init__(self, session: World, table: str) -> None:
        self.world = session
        self.table = table

    def groups(self, whole: Group) -> list[Group]:
        return [whole]

    def keep(self, group: Group, days: int) -> None:
        """Nothing is kept."""

    def is_begun(self, group: Group) -> bool:
        """A commit is whole or not at all."""
        return False

    def changed(self, group: Group) -> Mapping[int, Exception]:
        """No run is undone."""
        return {}

    def refuse(self, group: Group) -> None:
        if any(run.id in self.world.refused for run in group.runs):
            raise NotPublished("a row is refused")


class DeltaLog(Base):
    """Each group's id is decided once. A commit that is skipped reports nothing."""

    fixed = True

    def look(self, group: Group, *, again: bool) -> Looked:
        found = self._of(group)
        if not again or found is None:
            return Looked()
        return Looked(burned=found) if isinstance(found, Burned) else Looked(dict.fromkeys(ids(group), found))

    def replace(self, rows: Any, group: Group) -> str | Burned:
        found = self._of(group)
        if found is not None:
            return found
        self.refuse(group)
        return self.world.write(group)

    def burn(self, group: Group, why: str) -> str | Burned:
        found = self._of(group)
        if found is not None:
            return found
        between, self.world.between = self.world.between, int
        between()
        # The log skips the burn if there is an entry of the group by now.
        found = self._of(group)
        if found is not None:
            return found
        self.world.log.append((f"burn {why}", group))
        return Burned(why, at_once=True)

    def _of(self, group: Group) -> str | Burned | None:
        for version, (what, each) in enumerate(self.world.log, 1):
            if each.id == group.id:
                return str(version) if what == "commit" else Burned(what[5:])
        return None


class IcebergLog(Base):
    """A commit is refused if one since ``look`` changed rows of its intervals."""

    fixed = False

    def look(self, group: Group, *, again: bool) -> Looked:
        self.position = len(self.world.log)
        return Looked(self._published(group) if again else {})

    def replace(self, rows: Any, group: Group) -> str | Burned:
        mine = {number(run) for run in group.runs}
        for _, other in self.world.log[self.position :]:
            if mine & {number(run) for run in other.runs}:
                raise Conflict
        self.refuse(group)
        return self.world.write(group)

    def burn(self, group: Group, why: str) -> str | Burned:
        return Burned(why, at_once=True)

    def _published(self, group: Group) -> dict[int, str]:
        of = [(version, each) for version, (_, each) in enumerate(self.world.log, 1) if each.attempt == group.attempt]
        return {id: str(version) for version, each in of for id in ids(each) if id in ids(group)}


def ids(group: Group) -> list[int]:
    return [run.id for run in group.runs]


class Publisher:
    """One that can be stopped before each of its steps. ``wanted``: which runs it publishes."""

    def __init__(
        self, world: World, name: str, whole: Group, wanted: Collection[int], failed: Mapping[int, ErrorInfo]
    ) -> None:
        self.world, self.name = world, name
        over = set(ids(whole)) - set(wanted)
        self.publication = TablePublication(whole, lambda _: world.owner == name, wanted, failed, over)
        self.ended = False
        self._again = name != "driver"
        self._steps = self._walk()

    def _walk(self) -> Iterator[str]:
        while True:
            try:
                yield from steps(self.publication, self.world, again=self._again)
                return
            except Conflict:
                self._again = True

    def step(self) -> None:
        try:
            next(self._steps)
        except (StopIteration, NotPermitted):
            self.ended = True

    def finish(self, limit: int = 1000) -> int:
        """Continue, for so many steps at most. Returns how many it took."""
        taken = 0
        while not self.ended and taken < limit:
            self.step()
            taken += 1
        return taken


@cache
def group(attempt: int, *held: int, first: int = 1) -> Group:
    """The last group of an attempt, of which these runs waited for another review."""
    made = launch(range(first, first + RUNS), attempt, 1, 0)
    output = str(TableOutput("t", f"t_{attempt}", "day", "date", "memory"))
    runs = [replace(run, outputs=(output,), review=int(run.id in held)) for run in made.runs]
    return groups_of(made, attempt, runs)[-1]


@dataclass(frozen=True)
class Case:
    """``refused``: runs that the table does not take. ``unfit``: runs that must not be published yet, as a review found."""

    table: type[Base]
    refused: Collection[int] = ()
    unfit: Collection[int] = ()


CASES = [
    Case(table, refused, unfit)
    for table in (DeltaLog, IcebergLog)
    for refused, unfit in (((), ()), ((2,), ()), ((1, 4), ()), ((), (3,)), ((1,), (2, 3)), ((1, 2, 3, 4), ()))
]


def explore(case: Case, monkeypatch: pytest.MonkeyPatch) -> int:
    """Try all interleavings of a driver, the publisher that replaces it, and a later run. Returns how many."""
    monkeypatch.setattr(module, "FORMATS", {"memory": case.table})
    monkeypatch.setattr(module, "drop", lambda session, staged: session.dropped.add(staged))
    tried = 0
    first: int | None = 0
    while True:
        second = 0
        while True:
            driver_goes_on, publisher_goes_on = _play(case, first, second)
            tried += 1
            if not publisher_goes_on:
                break
            second += 1
        if first is None:
            return tried
        first = first + 1 if driver_goes_on else None


def _play(case: Case, first: int | None, second: int) -> tuple[bool, bool]:
    """The driver stops after ``first`` steps, and its successor after ``second``, when the driver wakes up.

    ``None``: it stops within its first burn.
    """
    world = World(case.refused)
    whole = group(25)
    failed = dict.fromkeys(case.unfit, UNFIT)
    driver = Publisher(world, "driver", whole, ids(whole), failed)
    world.owner = "driver"
    publisher = Publisher(world, "publisher", whole, ids(whole), failed)
    taken: list[int] = []

    def take_over() -> None:
        # The driver's lease has ended. What it reported before that has ended those runs; say that it reported nothing.
        world.owner = "publisher"
        taken.append(publisher.finish(second))

    driver_goes_on = False
    if first is None:
        world.between = take_over
        driver.finish()
    else:
        driver_goes_on = driver.finish(first) == first
    if not taken:
        take_over()
    publisher_goes_on = taken == [second]
    driver.finish(1)
    publisher.finish()
    results = publisher.publication.results
    _check(case, world, results)
    if not case.table.fixed and any(isinstance(each, ErrorInfo) for each in results.values()):
        # A run fails only once the operations of all its publishers have ended.
        driver.ended = True
    else:
        driver.finish(2)
    # What a review took out is published in the end, and then all intervals are processed again.
    if case.unfit:
        held = group(25, *case.unfit)
        world.owner = "reviewed"
        world.dropped.clear()
        Publisher(world, "reviewed", held, ids(held), {}).finish()
        _check(replace(case, unfit=()), world, results | dict.fromkeys(ids(held), "1"))
    world.owner, world.refused = "later", ()
    Publisher(world, "later", group(60, first=11), range(11, 11 + RUNS), {}).finish()
    before = {n: list(rows) for n, rows in world.rows.items()}
    driver.finish()
    assert world.rows == before, "a publisher that was replaced changed what a later run had published"
    assert all(rows[-1] == "attempt 60" for rows in before.values())
    return driver_goes_on, publisher_goes_on


def _check(case: Case, world: World, results: Mapping[int, TableResult]) -> None:
    """Each run that is fit is published once, and no other changes anything."""
    for id in range(1, RUNS + 1):
        fit = id not in case.refused and id not in case.unfit
        assert isinstance(results[id], str) == fit, (id, results[id], world.log)
        assert world.rows[id - 1] == (["before", "attempt 25"] if fit else ["before"]), (id, world.rows, world.log)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_run_is_published_once_whoever_is_stopped_where(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert explore(case, monkeypatch) > 9


def never_burns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaLog, "burn", lambda *_: Burned("", at_once=True))


def forgets_the_review(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "id", property(lambda each: f"{each.attempt} {ids(each)}"))


def forgets_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "id", property(lambda each: f"{each.attempt} {each.review}"))


def notes_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each commit were valid from the state that it finds."""
    look = IcebergLog.look

    def late(self: IcebergLog, group: Group, *, again: bool) -> Looked:
        looked = look(self, group, again=again)
        self.position = 10**9
        return looked

    monkeypatch.setattr(IcebergLog, "look", late)


@pytest.mark.parametrize(
    "rule", some([never_burns, forgets_the_review, forgets_the_runs, notes_no_position], never_burns, forgets_the_runs)
)
def test_without_one_of_the_rules_some_interleaving_goes_wrong(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(monkeypatch)
    with pytest.raises((AssertionError, RecursionError)):
        for case in CASES:
            explore(case, monkeypatch)
