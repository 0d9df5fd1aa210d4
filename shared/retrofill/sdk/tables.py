"""``Table``: a table that a task without code of Retrofill's writes, and what tells an interval's rows in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Mapping, Union

# Spark settings that send commits to audited Iceberg tables elsewhere than to what readers see.
REDIRECTIONS = BRANCH, _ID = ("spark.wap.branch", "spark.wap.id")
# A column's name, or names with formats.
Declared = Union[str, Mapping[str, Union[str, None]]]


@dataclass(frozen=True)
class Table:
    """A Delta or Iceberg table of which a script or a file of SQL replaces the rows of its interval.

    ``name``: in Spark's SQL; it may have the fields of ``args``. ``column``, ``zone``: as for
    ``run.stage_table``. ``with_rows``: what the script writes to has the interval's present rows, as MERGE,
    UPDATE and DELETE need them; otherwise it is empty. ``redirected``: the script writes to ``name`` itself,
    an Iceberg table with ``write.wap.enabled=true``, and ``spark.wap.branch`` sends its commits to a branch.
    ``sparse``: an interval may have no rows; of a redirected one, its rows may stay as they are.
    """

    name: str
    column: Declared
    zone: str = ""
    with_rows: bool = False
    sparse: bool = False
    redirected: bool = False

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)
