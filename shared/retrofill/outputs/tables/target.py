"""A target's own rules: the rows are held to them, and what no commit could do is refused, when output is staged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Sequence

from retrofill.protocol.table_output import TableOutput


@dataclass(frozen=True)
class Filled:
    """Columns that the table fills in rows without them.

    ``when_staged``: the staged table computes the same values. ``by_commit``: only a commit to the target can. Of these,
    ``always`` must not be given.
    """

    when_staged: tuple[str, ...] = ()
    by_commit: tuple[str, ...] = ()
    always: tuple[str, ...] = ()


class Target(Protocol):
    """A table of a format, for which rows are staged. Methods raise ``CannotStage`` besides what Spark raises."""

    def __init__(self, session: Any, table: str) -> None: ...

    def refuse(self, conditions: Sequence[str]) -> None:
        """Raise ``CannotStage`` if a commit could not replace the rows that meet one of the conditions, or nobody saw it.

        ``conditions``: of the intervals, in order.
        """

    def create(self, staged: str, schema: Any) -> Filled:
        """Create the staged table, if it needs the rules of the target before the rows are known."""

    def create_like(self, staged: str) -> Filled:
        """Create an empty table with the target's columns, partitions and rules, for code that would write to the target."""

    def write(self, rows: Any, output: TableOutput) -> None:
        """Write the rows to the staged table. Raises ``DoesNotFit`` if they break a rule of the target."""


def properties_of(session: Any, table: str) -> dict[str, str]:
    """The table's properties."""
    return {row.key: row.value for row in session.sql(f"SHOW TBLPROPERTIES {table}").collect()}
