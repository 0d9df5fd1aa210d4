"""Array parameters: many values or rows in a statement that is built once.

SQLAlchemy takes far longer to build a statement than to send it again with other parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, bindparam, column, func
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
