"""Arrays as a table: many rows in one statement with few parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ARRAY, bindparam, column, func
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

# Rows of a plan per statement: tens of milliseconds, during which this process does nothing else.
CHUNK = 10_000


def rows_of(
    name: str,
    columns: Mapping[str, tuple[TypeEngine[Any] | type[TypeEngine[Any]], Sequence[Any]]],
    *,
    number: str | None = None,
) -> TableValuedAlias:
    """``unnest`` of one array per column, as ``name``; ``number`` adds a row number, from 1."""
    more = {"with_ordinality": number} if number else {}
    types = {c: _types(kind) for c, (kind, _) in columns.items()}  # type: ignore[arg-type]  # hashed by identity
    arrays = (bindparam(f"{name}_{c}", list(values), types[c][1]) for c, (_, values) in columns.items())
    return (
        func.unnest(*arrays)
        .table_valued(*(column(c, one) for c, (one, _) in types.items()), name=name, **more)
        .render_derived()
    )


@cache
def _types(kind: TypeEngine[Any] | type[TypeEngine[Any]]) -> tuple[TypeEngine[Any], ARRAY[Any]]:
    """A type and its array type, cached: SQLAlchemy computes a cache key once per instance."""
    one = kind() if isinstance(kind, type) else kind
    return one, ARRAY(one)
