"""Parts of statements: array parameters, states as constants, and the database's clock.

With an array parameter, many values or rows go into a statement that is built once: SQLAlchemy takes far longer to
build a statement than to send it again with other parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    FromClause,
    Text,
    bindparam,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.types import TypeEngine

# Rows of a plan per statement: tens of milliseconds, during which this process does nothing else.
CHUNK = 10_000


class Arrays:
    """A table in a statement, ``unnest`` of one array parameter per column.

    ``table`` is joined or selected from, ``c`` are its columns; ``number`` adds a row number, from
    1. Each execution passes the rows as ``values``.
    """

    def __init__(
        self, name: str, /, *, number: str | None = None, **columns: TypeEngine[Any] | type[TypeEngine[Any]]
    ) -> None:
        more = {"with_ordinality": number} if number else {}
        self._parameters = {column: f"{name}_{column}" for column in columns}
        arrays = (bindparam(self._parameters[each], type_=ARRAY(kind)) for each, kind in columns.items())
        self.table = (
            func.unnest(*arrays)
            .table_valued(*(column(each, kind) for each, kind in columns.items()), **more)
            .render_derived(name)
        )
        self.c = self.table.c

    def values(self, /, **columns: Iterable[Any]) -> dict[str, list[Any]]:
        """Parameters with the values of each column. Raises ``TypeError`` for other columns."""
        if columns.keys() != self._parameters.keys():
            raise TypeError(f"the columns are {', '.join(self._parameters)}, not {', '.join(columns)}")
        return {self._parameters[name]: list(values) for name, values in columns.items()}


def one_of(column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    """``column`` is an element of an array parameter."""
    return column == func.any(bindparam(parameter, type_=ARRAY(column.type)))


def none_of(column: ColumnElement[Any], parameter: str) -> ColumnElement[bool]:
    """``column`` is not an element of an array parameter."""
    return column != func.all(bindparam(parameter, type_=ARRAY(column.type)))


def constant(name: str) -> ColumnElement[str]:
    """``name`` as a text constant. Raises ``ValueError`` if it is not one word."""
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not one word")
    return literal_column(f"'{name}'", Text)


def in_state(table: FromClause, *states: str) -> ColumnElement[bool]:
    """The row of ``table`` is in one of ``states``."""
    names = [constant(state) for state in states]
    return table.c.state == names[0] if len(names) == 1 else table.c.state.in_(names)


_NOW = select(func.clock_timestamp())


def database_now(conn: Connection) -> datetime:
    """The time of this statement, not of its transaction, in UTC."""
    now: datetime = conn.execute(_NOW).scalar_one()
    return now
