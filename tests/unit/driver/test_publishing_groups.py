"""Several runs and tables of one attempt: one that is refused fails alone, and one that waits is not given up elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import cast

import pytest
from tests.support.lake import launch
from tests.unit.driver.test_putting_off import OfTests, OneTable

from retrofill.driver.execute import Result
from retrofill.driver.publishing import publish_all
from retrofill.driver.session import Sessions
from retrofill.outputs.tables import publication, turns
from retrofill.outputs.tables.group import Group
from retrofill.outputs.tables.protocol import Burned, NotPublished
from retrofill.outputs.tables.publication import NotPermitted, Tables
from retrofill.protocol.table_output import TableOutput

COMMITS: list[tuple[str, list[int]]] = []
BURNS: list[tuple[str, list[int]]] = []
# What a commit of a group raises, by the table's name.
RAISES: dict[str, Callable[[list[int]], Exception | None]] = {}


class Fixed(OneTable):
    """As Delta: a group that is refused is burned, and divided."""

    fixed = True

    def replace(self, _: object, group: Group) -> str:
        ids = [run.id for run in group.runs]
        error = RAISES.get(self.table, lambda _: None)(ids)
        if error is not None:
            raise error
        COMMITS.append((self.table, ids))
        return str(len(COMMITS))

    def burn(self, group: Group, why: str) -> Burned:
        BURNS.append((self.table, [run.id for run in group.runs]))
        return super().burn(group, why)


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (COMMITS, BURNS, RAISES):
        each.clear()
    monkeypatch.setattr(turns, "SECONDS", 0.0)
    monkeypatch.setattr(publication, "FORMATS", {"delta": Fixed})
    monkeypatch.setattr(publication, "turn", lambda _: nullcontext())
    monkeypatch.setattr(publication, "drop", lambda *_: None)


def publish(
    *names: str, runs: int = 4, asked: list[list[int]] | None = None, permitted: bool = True
) -> dict[int, Result]:
    """The results of runs that have staged these tables, by id."""
    made = launch(range(1, 1 + runs), 25, 1, 0)
    outputs = tuple(str(TableOutput(name, f"{name}_staged", "day", "date", "delta")) for name in names)

    def may(wanted: object) -> bool:
        if asked is not None:
            asked.append([run.id for run in wanted])  # type: ignore[attr-defined]
        return permitted

    all_tables = Tables(made, cast(Sessions, OfTests()), may, pytest.fail)
    found = publish_all(made, 25, [replace(run, outputs=outputs) for run in made.runs], all_tables)
    return {run.id: result for run, result in found}


def test_all_runs_are_one_commit_for_each_table_and_are_asked_for_together() -> None:
    asked: list[list[int]] = []
    results = publish("a", "b", asked=asked)
    assert COMMITS == [("a", [1, 2, 3, 4]), ("b", [1, 2, 3, 4])]
    assert asked == [[1, 2, 3, 4]] * 2
    assert [[(each.name, each.version) for each in result.published] for result in results.values()] == [
        [("a", "1"), ("b", "2")]
    ] * 4


def test_one_that_a_table_refuses_fails_alone_and_is_published_in_no_later_table() -> None:
    RAISES["a"] = lambda ids: NotPublished("a row of it") if 3 in ids else None
    results = publish("a", "b")
    assert [id for id, result in results.items() if not result.succeeded] == [3]
    assert results[3].error is not None and results[3].error.message == "a row of it"
    assert COMMITS == [("a", [1, 2]), ("a", [4]), ("b", [1, 2]), ("b", [4])]
    # Whoever wakes up late finds each group with it burned.
    assert BURNS == [("a", [1, 2, 3, 4]), ("a", [3, 4]), ("a", [3]), ("b", [1, 2, 3, 4]), ("b", [3, 4]), ("b", [3])]


def test_what_waits_in_one_table_is_burned_in_no_other() -> None:
    RAISES["a"] = lambda _: ConnectionError("the catalog is away")
    results = publish("a", "b")
    assert {result.put_off for result in results.values()} == {True}
    assert (COMMITS, BURNS) == ([], [])


def test_runs_of_another_publisher_are_left_to_it() -> None:
    with pytest.raises(NotPermitted, match="another driver publishes run 1"):
        publish("a", permitted=False)
    assert (COMMITS, BURNS) == ([], [])
