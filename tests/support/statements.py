"""The statements that code really sends: recorded at the engine, counted, and explained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import Engine, event

# Read from end to end these say that an index is missing; the others are small, backfills too: one row a request.
EXPLAINED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
LARGE = frozenset({"run", "task_run", "deadline", "backfill_interval"})


@dataclass(frozen=True)
class Statement:
    """One statement with its parameters."""

    text: str
    parameters: Any


@dataclass
class Recorded:
    """What was sent while it was recorded."""

    statements: list[Statement] = field(default_factory=list)

    def shapes(self) -> list[str]:
        """The statements without their parameters, in their order."""
        return [statement.text for statement in self.statements]


@contextmanager
def recorded(engine: Engine) -> Iterator[Recorded]:
    """Record what an engine sends."""
    found = Recorded()

    def sent(_conn: object, _cursor: object, text: str, parameters: Any, _context: object, _many: bool) -> None:
        found.statements.append(Statement(text, parameters))

    event.listen(engine, "before_cursor_execute", sent)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", sent)


def scanned(conn: psycopg.Connection, statement: Statement) -> set[str]:
    """The large tables that a statement would read from end to end."""
    if not statement.text.lstrip().startswith(EXPLAINED):
        # Savepoints and the like read nothing.
        return set()
    ((plan,),) = conn.execute(b"EXPLAIN (FORMAT JSON) " + statement.text.encode(), statement.parameters).fetchall()
    return {node["Relation Name"] for node in _nodes(plan[0]["Plan"]) if node["Node Type"] == "Seq Scan"} & LARGE


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)
