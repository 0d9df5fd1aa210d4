"""In-memory tables with defaults, identities and constraints, read from the services' metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg.errors as pg
from sqlalchemy import CheckConstraint, Column, DateTime, Identity, Integer, Table, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, ExcludeConstraint, Range
from sqlalchemy.dialects.postgresql.ranges import MultiRange

from tests.simulation.memory import errors
from tests.simulation.memory.conditions import condition
from tests.simulation.memory.rows import NO_KEY_UPDATE, UPDATE, Row, Tx, Values


@dataclass(frozen=True)
class Unique:
    """A unique index, possibly partial."""

    name: str
    columns: tuple[str, ...]
    where: Callable[[Values], bool]
    nulls_distinct: bool = True

    def key(self, values: Values | None) -> tuple[Any, ...] | None:
        """The indexed values, or ``None`` for a row that the index does not cover."""
        if values is None or not self.where(values):
            return None
        key = tuple(values[name] for name in self.columns)
        return None if self.nulls_distinct and None in key else key

    def clash(self, one: Values, other: Values) -> bool:
        """Whether the two rows conflict."""
        return self.key(one) == self.key(other)

    def violated(self) -> Exception:
        """The error to raise."""
        return errors.unique(self.name)


class NoOverlap(Unique):
    """The exclusion constraint on backfills: the same pipeline, overlapping intervals."""

    def clash(self, one: Values, other: Values) -> bool:
        (number,) = self.columns
        return bool(one[number] == other[number] and overlap(covered(one), covered(other)))

    def violated(self) -> Exception:
        return errors.exclusion(self.name)


def covered(backfill: Values) -> Range[Any] | MultiRange[Any]:
    """The intervals of a backfill."""
    parts: Range[Any] | MultiRange[Any] = backfill["covers_parts"] or backfill["covers"]
    return parts


def overlap(one: Range[Any] | MultiRange[Any], other: Range[Any] | MultiRange[Any]) -> bool:
    """Whether the ranges have a moment in common."""
    ranges, others = ([each] if isinstance(each, Range) else each for each in (one, other))
    return any(a.overlaps(b) for a in ranges for b in others)


def _always(values: Values) -> bool:
    return True


class MemoryTable:
    def __init__(self, table: Table, database: Any) -> None:
        self.table = table
        self.name = table.name
        self.database = database
        self.rows: list[Row] = []
        self.columns = [column.name for column in table.columns]
        self.stores = {c.name: store for c in table.columns if (store := _store_of(c)) is not None}
        self.next_id = 1
        self.identity = next((c.name for c in table.columns if isinstance(c.server_default, Identity)), None)
        self.defaults = {c.name: _default(c) for c in table.columns if c.name != self.identity}
        self.required = [c.name for c in table.columns if not c.nullable]
        self.checks = [
            (str(c.name), condition(str(c.sqltext))) for c in table.constraints if isinstance(c, CheckConstraint)
        ]
        self.uniques = list(_uniques(table))
        # Of each index, by key: the rows of which any version ever had it.
        self._had: dict[str, dict[Any, dict[Row, None]]] = {unique.name: {} for unique in self.uniques}
        self.keys = {name for unique in self.uniques if unique.where is _always for name in unique.columns}
        self.parents = [(fk.parent.name, fk.column.table.name, fk.column.name) for fk in table.foreign_keys]

    def default(self, name: str) -> Any:
        """The value of a column that an insert does not name."""
        if name == self.identity:
            self.next_id += 1
            return self.next_id - 1
        made = self.defaults[name]
        return made(self.database) if callable(made) else made

    def stored(self, values: Values) -> Values:
        """Values as the server returns them."""
        return {n: self.stores[n](v) if v is not None and n in self.stores else v for n, v in values.items()}

    def insert(self, tx: Tx, given: Values, *, skip: Callable[[Unique], bool]) -> tuple[Row | None, Row | None]:
        """Insert a row.

        Returns ``None`` and the conflicting row if a unique index conflicts for which ``skip``
        holds.
        """
        values = {name: given[name] if name in given else self.default(name) for name in self.columns}
        values = self.stored(values)
        self._check(values)
        row = Row()
        for unique in self.uniques:
            there = self._clashing(tx, row, unique, values)
            if there is not None:
                if skip(unique):
                    return None, there
                raise unique.violated()
        for name, parent, column in self.parents:
            if values[name] is not None and not self._has_parent(tx, parent, column, values[name]):
                raise errors.integrity(pg.ForeignKeyViolation, f"{self.name}.{name}: no such {parent}")
        self.rows.append(row)
        tx.lock(row, UPDATE)
        self._write(tx, row, values)
        return row, None

    def update(self, tx: Tx, row: Row, old: Values, changes: Values) -> Values:
        """Write a locked row; returns the new version."""
        values = {**old, **self.stored(changes)}
        self._check(values)
        for unique in self.uniques:
            if unique.key(old) != unique.key(values) and self._clashing(tx, row, unique, values) is not None:
                raise unique.violated()
        self._write(tx, row, values)
        return values

    def _write(self, tx: Tx, row: Row, values: Values) -> None:
        for unique in self.uniques:
            if (key := unique.key(values)) is not None:
                self._had[unique.name].setdefault(key, {})[row] = None
        tx.write(self, row, values)

    def lock_mode(self, changed: Iterable[str]) -> str:
        """The row lock that an update of these columns takes."""
        return UPDATE if self.keys & set(changed) else NO_KEY_UPDATE

    def _check(self, values: Values) -> None:
        for name in self.required:
            if values[name] is None:
                raise errors.integrity(pg.NotNullViolation, f"null value in column {name!r} of {self.name!r}")
        for name, holds in self.checks:
            if not holds(values):
                raise errors.integrity(pg.CheckViolation, f"{self.name}: violates check constraint {name!r}")

    def _clashing(self, tx: Tx, new: Row, unique: Unique, values: Values) -> Row | None:
        """A row that definitely conflicts. Waits for transactions whose outcome decides that."""
        key = unique.key(values)
        if key is None:
            return None
        while True:
            unclear: list[Tx] = []
            for row in self._had[unique.name].get(key, ()):
                if row is new:
                    continue
                other = row.writer if row.writer is not tx else None
                versions = (row.committed, row.pending) if other is not None else (row.seen_by(tx),)
                found = [v is not None and unique.key(v) is not None and unique.clash(values, v) for v in versions]
                if all(found):
                    if other is None:
                        return row
                    # As in Postgres, it conflicts regardless of the outcome only if its key is
                    # unchanged.
                    if row.committed is not None and unique.key(row.committed) == unique.key(row.pending):
                        return row
                if any(found) and other is not None:
                    unclear.append(other)
            if not unclear:
                return None
            tx.wait(unclear)

    def _has_parent(self, tx: Tx, parent: str, column: str, value: Any) -> bool:
        found = (row.seen_by(tx) for row in self.database.tables[parent].rows)
        return any(values is not None and values[column] == value for values in found)


def _uniques(table: Table) -> Iterable[Unique]:
    if table.primary_key.columns:
        yield Unique(f"{table.name}_pkey", tuple(c.name for c in table.primary_key.columns), _always)
    for column in table.columns:
        if column.unique:
            yield Unique(f"{table.name}_{column.name}_key", (column.name,), _always)
    for constraint in sorted(table.constraints, key=lambda c: str(c.name)):
        if isinstance(constraint, UniqueConstraint) and len(constraint.columns) > 1:
            distinct = not constraint.dialect_options["postgresql"]["nulls_not_distinct"]
            yield Unique(str(constraint.name), tuple(c.name for c in constraint.columns), _always, distinct)
        if isinstance(constraint, ExcludeConstraint):
            assert constraint.where is not None
            yield NoOverlap(str(constraint.name), ("pipeline_no",), condition(str(constraint.where)))
    for index in sorted(table.indexes, key=lambda i: str(i.name)):
        if index.unique:
            where = index.dialect_options["postgresql"]["where"]
            holds = _always if where is None else condition(str(where))
            yield Unique(str(index.name), tuple(c.name for c in index.columns), holds)


_DEFAULTS: dict[str, Any] = {
    "0": 0,
    "false": False,
    "true": True,
    "''": "",
    "'default'": "default",
    "'function'": "function",
    "'{}'::jsonb": {},
    "'{}'": [],
}


def _default(column: Column[Any]) -> Any:
    default = column.server_default
    if default is None:
        return None
    sql = str(default.arg)  # type: ignore[attr-defined]  # every default of the schema is an expression or text
    if sql == "clock_timestamp()":
        return lambda database: database.now()
    return _DEFAULTS[sql]


def _store_of(column: Column[Any]) -> Callable[[Any], Any] | None:
    kind = column.type
    if isinstance(kind, JSONB):
        return lambda value: json.loads(json.dumps(value))
    if isinstance(kind, DateTime):
        return _moment
    if isinstance(kind, ARRAY):
        return list
    if isinstance(kind, Integer):
        return int
    if isinstance(kind, Text):
        return str
    return None


def _moment(value: datetime) -> datetime:
    return value if value.tzinfo is UTC else value.astimezone(UTC)
