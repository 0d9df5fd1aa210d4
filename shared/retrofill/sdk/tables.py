"""``Table``: a table that a task without code of Retrofill's writes, and what tells an interval's rows in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Mapping, Union

# A column's name, or names with formats.
Declared = Union[str, Mapping[str, Union[str, None]]]


@dataclass(frozen=True)
class Table:
    """A Delta or Iceberg table of which a script or a file of SQL replaces the rows of its interval.

    ``name``: in Spark's SQL; it may have the fields of ``args``. ``column``, ``zone``: as for
    ``run.stage_table``. ``with_rows``: what the script writes to has the interval's present rows, as MERGE,
    UPDATE and DELETE need them; otherwise it is empty. ``sparse``: an interval may have no rows.
    """

    name: str
    column: Declared
    zone: str = ""
    with_rows: bool = False
    sparse: bool = False

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)
