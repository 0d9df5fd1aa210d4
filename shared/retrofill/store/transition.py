"""The one function through which every state changes: along an edge of the table, guarded, and it says what landed."""

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
    """Move ``rows`` to state ``to``, each only from a state that has an edge to it; returns those rows that landed.

    ``rows`` are dicts with the same columns: the primary key, those of ``guard`` (compared, such as the attempt that fences a
    run), and others, which are set. ``frm`` narrows the states to come from; ``values`` are set on every row. A row does
    not land where it is in another state, under another guard, or not there: the caller decides what that means.

    Raises ``ValueError`` for a state in ``frm`` from which the table has no edge.
    """
    sources = machine.sources(to)
    if from_states is not None:
        if not set(from_states) <= sources:
            raise ValueError(f"{machine.entity}: no edge {sorted(set(from_states) - sources)} → {to}")
        sources = frozenset(from_states)
    if not rows:
        return []
    compared = [key.name for key in table.primary_key] + list(guard)
    names = list(rows[0])
    given = rows_of("given", {name: (table.c[name].type, [row[name] for row in rows]) for name in names})
    statement = (
        update(table)
        .where(*(table.c[name] == given.c[name] for name in compared))
        .where(table.c.state.in_(sorted(sources)))
        .values(
            {
                "state": to,
                **{name: given.c[name] for name in names if name not in compared},
                **(values or {}),
            }
        )
        .returning(*(given.c[name] for name in names))
    )
    return [dict(row) for row in conn.execute(statement).mappings()]
