"""Arrays as a table: many rows in one statement with a handful of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ARRAY, bindparam, column, func
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine


def rows_of(
    name: str,
    columns: Mapping[str, tuple[TypeEngine[Any] | type[TypeEngine[Any]], Sequence[Any]]],
    *,
    number: str | None = None,
) -> TableValuedAlias:
    """``unnest`` of one array a column, called ``name``; ``number`` names a column that counts the rows from 1."""
    more = {"with_ordinality": number} if number else {}
    return (
        func.unnest(*(bindparam(f"{name}_{c}", list(values), ARRAY(kind)) for c, (kind, values) in columns.items()))
        .table_valued(*(column(c, kind) for c, (kind, _) in columns.items()), name=name, **more)
        .render_derived()
    )
