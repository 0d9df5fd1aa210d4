"""States and other names as constants in the SQL.

A plan for any parameters cannot use a partial index, and a constant costs nothing per execution.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, FromClause, Text, literal_column


def constant(name: str) -> ColumnElement[str]:
    """``name`` as a text constant. Raises ``ValueError`` if it is not one word."""
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not one word")
    return literal_column(f"'{name}'", Text)


def in_state(table: FromClause, *states: str) -> ColumnElement[bool]:
    """The row of ``table`` is in one of ``states``."""
    names = [constant(state) for state in states]
    return table.c.state == names[0] if len(names) == 1 else table.c.state.in_(names)
