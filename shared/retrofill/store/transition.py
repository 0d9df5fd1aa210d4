"""The only way a state changes: a guarded update along an edge that reports what landed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, update
from sqlalchemy.sql.elements import ColumnElement

from retrofill.domain.machine import Machine
from retrofill.store.arrays import rows_of

Values = Mapping[str, Any]


def transition(
    conn: Connection,
    machine: Machine,
    table: Table,
    to: str,
    rows: Sequence[Values],
    *,
    guard: Sequence[str] = (),
    from_states: Sequence[str] | None = None,
    values: Mapping[str, ColumnElement[Any] | Any] | None = None,
) -> list[Values]:
    """Move ``rows`` to ``to``, only from states with an edge to it; returns the rows that landed.

    ``rows`` have the same columns: the primary key, those of ``guard`` (compared, like the attempt
    that fences a run), and columns to set. ``from_states`` narrows the source states; ``values``
    are set on every row. A row does not land if it does not exist, or has another state or guard.

    Raises ``ValueError`` if one of ``from_states`` has no edge to ``to``.
    """
    sources = _sources(machine, to, from_states)
    if not rows:
        return []
    compared = [key.name for key in table.primary_key] + list(guard)
    names = list(rows[0])
    given = rows_of("given", {name: (table.c[name].type, [row[name] for row in rows]) for name in names})
    statement = (
        update(table)
        .where(*(table.c[name] == given.c[name] for name in compared))
        .where(table.c.state.in_(sorted(sources)))
        .values({"state": to, **{name: given.c[name] for name in names if name not in compared}, **(values or {})})
        .returning(*(given.c[name] for name in names))
    )
    return [dict(row) for row in conn.execute(statement).mappings()]


def _sources(machine: Machine, to: str, from_states: Sequence[str] | None) -> frozenset[str]:
    sources = machine.sources(to)
    if from_states is None:
        return sources
    if not set(from_states) <= sources:
        raise ValueError(f"{machine.entity}: no edge {sorted(set(from_states) - sources)} → {to}")
    return frozenset(from_states)
