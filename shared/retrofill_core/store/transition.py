"""The only way a state changes: a guarded update along an edge that reports what landed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Interval, Table, Update, bindparam, func, update
from sqlalchemy.sql.expression import ClauseElement

from retrofill.states import Machine
from retrofill_core.store.sql import Arrays, constant, in_state

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Computed:
    """What Postgres computes for a column from ``value``, a parameter of the statement."""

    value: Any

    @staticmethod
    def sql(column: ColumnElement[Any], parameter: str) -> ColumnElement[Any]:
        raise NotImplementedError


class Plus(Computed):
    """The column plus ``value``; an object gets the fields of ``value``."""

    @staticmethod
    def sql(column: ColumnElement[Any], parameter: str) -> ColumnElement[Any]:
        return column + bindparam(parameter, type_=column.type)


class IfNull(Computed):
    """``value`` if the column is null."""

    @staticmethod
    def sql(column: ColumnElement[Any], parameter: str) -> ColumnElement[Any]:
        return func.coalesce(column, bindparam(parameter, type_=column.type))


@dataclass(frozen=True, slots=True)
class FromNow(Computed):
    """The time ``value`` from now, by the database's clock."""

    value: timedelta = timedelta()

    @staticmethod
    def sql(column: ColumnElement[Any], parameter: str) -> ColumnElement[Any]:
        return func.clock_timestamp(type_=column.type) + bindparam(parameter, type_=Interval)


def transition(
    conn: Connection,
    machine: Machine,
    table: Table,
    to: str,
    rows: Sequence[Values],
    *,
    guard: Sequence[str] = (),
    from_states: Sequence[str] | None = None,
    values: Values | None = None,
) -> list[tuple[Any, ...]]:
    """Move ``rows`` to ``to``, only from states with an edge to it.

    ``rows`` have the same columns: the primary key, those of ``guard`` (compared, like the attempt
    that fences a run), and columns to set. ``from_states`` narrows the source states; ``values``,
    plain or ``Computed``, are set on every row. A row does not land if it does not exist, or has
    another state or guard. Returns the primary keys and guards of the rows that landed, in this order.

    Raises ``ValueError`` if one of ``from_states`` has no edge to ``to``, and ``TypeError`` for an
    SQL expression in ``values``: the statement is built once for all values.
    """
    sources = _sources(machine, to, from_states)
    if not rows:
        return []
    values = values or {}
    if any(isinstance(value, ClauseElement) for value in values.values()):
        raise TypeError(f"{table.name}: an SQL expression among {', '.join(values)}; use a Computed")
    kinds = tuple((name, type(value) if isinstance(value, Computed) else None) for name, value in values.items())
    statement, given = _statement(table, str(to), tuple(sorted(sources)), tuple(rows[0]), tuple(guard), kinds)
    parameters: dict[str, Any] = given.values(**{name: [row[name] for row in rows] for name in rows[0]})
    for name, value in values.items():
        parameters[f"new_{name}"] = value.value if isinstance(value, Computed) else value
    return [tuple(row) for row in conn.execute(statement, parameters)]


@cache
def _statement(
    table: Table,
    to: str,
    sources: tuple[str, ...],
    names: tuple[str, ...],
    guard: tuple[str, ...],
    kinds: tuple[tuple[str, type[Computed] | None], ...],
) -> tuple[Update, Arrays]:
    compared = [key.name for key in table.primary_key] + list(guard)
    given = Arrays("given", number=None, **{name: table.c[name].type for name in names})
    new: dict[str, ColumnElement[Any]] = {"state": constant(to)}
    new |= {name: given.c[name] for name in names if name not in compared}
    for name, kind in kinds:
        column = table.c[name]
        new[name] = kind.sql(column, f"new_{name}") if kind else bindparam(f"new_{name}", type_=column.type)
    statement = (
        update(table)
        .where(*(table.c[name] == given.c[name] for name in compared), in_state(table, *sources))
        .values(new)
        .returning(*(given.c[name] for name in compared))
    )
    return statement, given


def _sources(machine: Machine, to: str, from_states: Sequence[str] | None) -> frozenset[str]:
    sources = machine.sources(to)
    if from_states is None:
        return sources
    if not set(from_states) <= sources:
        raise ValueError(f"{machine.entity}: no edge {sorted(set(from_states) - sources)} → {to}")
    return frozenset(from_states)
