"""The SQL statements that code really sends: recorded at the engine, counted and explained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import Engine, event

# A sequential scan of these means that an index is missing. The others are small; backfill has only
# one row per request.
EXPLAINED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
LARGE = frozenset({"run", "attempt", "task_run", "deadline", "backfill_interval"})


@dataclass(frozen=True)
class Statement:
    """One statement with its parameters."""

    text: str
    parameters: Any


@dataclass
class Recorded:
    """The statements sent during a recording."""

    statements: list[Statement] = field(default_factory=list)

    def shapes(self) -> list[str]:
        """The statements without their parameters, in order."""
        return [statement.text for statement in self.statements]


@contextmanager
def recorded(engine: Engine) -> Iterator[Recorded]:
    """Record the statements that an engine sends."""
    found = Recorded()

    def sent(_conn: object, _cursor: object, text: str, parameters: Any, _context: object, _many: bool) -> None:
        found.statements.append(Statement(text, parameters))

    event.listen(engine, "before_cursor_execute", sent)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", sent)


def scanned(conn: psycopg.Connection, statement: Statement) -> set[str]:
    """The large tables that the statement would scan sequentially."""
    if not statement.text.lstrip().startswith(EXPLAINED):
        # Savepoints and the like read nothing.
        return set()
    ((plan,),) = conn.execute(b"EXPLAIN (FORMAT JSON) " + statement.text.encode(), statement.parameters).fetchall()
    return {node["Relation Name"] for node in _nodes(plan[0]["Plan"]) if node["Node Type"] == "Seq Scan"} & LARGE


def entries_read(conn: psycopg.Connection, statement: Statement, table: str) -> int:
    """How many rows of the table the statement reads, those that its conditions then exclude too."""
    explain = b"EXPLAIN (ANALYZE, FORMAT JSON) " + statement.text.encode()
    ((plan,),) = conn.execute(explain, statement.parameters).fetchall()
    nodes = [node for node in _nodes(plan[0]["Plan"]) if node.get("Relation Name") == table]
    # The numbers are averages of the loops.
    read: float = sum((n["Actual Rows"] + n.get("Rows Removed by Filter", 0)) * n["Actual Loops"] for n in nodes)
    return round(read)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)
