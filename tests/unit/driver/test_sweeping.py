"""Staged tables of earlier attempts that are dropped."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.lake import launch

from retrofill.outputs.tables.sweeping import StagedTables
from retrofill.protocol.launch import Launch, Piece


class Spark:
    """A session that only records its statements, and answers each with these tables."""

    def __init__(self, *tables: str) -> None:
        self.statements: list[str] = []
        self._tables = tables

    def sql(self, statement: str) -> Spark:
        self.statements.append(statement)
        return self

    def collect(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(tableName=name) for name in self._tables]


def attempt(id: int, day: int = 1, days: int = 1) -> Launch:
    """At runs of these days."""
    return launch(range(1, 1 + days), id, day, 0)


def named(of: Launch, table: str = "t") -> str:
    return StagedTables(of).name(table, Piece(of.runs), 1)


def dropped(own: Launch, *tables: str, times: int = 1) -> list[str]:
    session, staged = Spark(*tables), StagedTables(own)
    for _ in range(times):
        staged.sweep(session, ["lake", "db"])
    asked, *others = session.statements
    assert re.fullmatch(r"SHOW TABLES IN lake\.db LIKE '[a-z0-9_*]+'", asked)
    return [re.fullmatch(r"DROP TABLE IF EXISTS lake\.db\.`?(.*?)`? PURGE", each)[1] for each in others]  # type: ignore[index]


OF_A_RANGE = attempt(3, day=1, days=5)


@pytest.mark.parametrize(
    ("own", "goes"),
    [
        (attempt(9, day=1), True),
        (attempt(9, day=3), True),
        (attempt(9, day=5), True),
        (attempt(9, day=4, days=9), True),
        (attempt(9, day=6), False),
        (attempt(3, day=1), False),
        (attempt(2, day=1), False),
        (replace(attempt(9, day=1), unpublished=(3,)), False),
        (replace(attempt(9, day=1), unpublished=(33,)), True),
        (replace(attempt(9, day=1), installation="another"), False),
    ],
)
def test_the_table_of_a_range_goes_with_a_later_attempt_at_one_of_its_intervals(own: Launch, goes: bool) -> None:
    left = named(OF_A_RANGE)
    assert dropped(own, left) == ([left] if goes else [])


@pytest.mark.parametrize("table", ["a|b", "it's", "a.b", "a\\b", "T"])
def test_only_what_is_named_as_a_staged_table_goes_however_much_spark_lists(table: str) -> None:
    left = named(attempt(3), table)
    others = ("a", "b", f"{left}_copy", left.replace("__retrofill_", "_retrofill_"), "t__retrofill_0123456789_3_1")
    assert dropped(attempt(9), *others, left, left.upper()) == [left, left.upper()]


def test_a_namespace_is_listed_once_for_all_runs_of_an_attempt() -> None:
    left = named(attempt(3, day=4))
    assert dropped(attempt(9, days=5), left, times=3) == [left]


def test_each_table_of_an_attempt_has_a_name_of_its_own() -> None:
    own = attempt(9, days=3)
    tables = StagedTables(own)
    pieces: list[Any] = [Piece(own.runs), *(Piece((run,)) for run in own.runs)]
    names = {tables.name("t", piece, number) for piece in pieces for number in (1, 2)}
    assert len(names) == 8
    assert all(re.fullmatch(r"t__retrofill_[0-9a-f]{10}_[0-9a-z]{7}_[0-9a-z]{7}_9_[12]", name) for name in names)
