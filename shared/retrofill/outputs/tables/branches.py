"""Branches of Iceberg tables: ``spark.wap.branch`` sends a script's commits there, and readers of the table do not see them.

Such a script knows nothing of Retrofill, and writes to the table by its own name. Afterwards the interval's rows of the branch are
staged like any others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrofill.outputs.cannot_stage import CannotStage, OtherInterval
from retrofill.outputs.tables.changes import as_of, same_rows
from retrofill.outputs.tables.iceberg import AUDITED, change_branches, is_audited
from retrofill.protocol.table_output import joined, parts_of
from retrofill.sdk.tables import BRANCH

# Iceberg's changelog cannot read tables that have some.
_DELETE_FILES = "Delete files"
# What readers see.
_MAIN = "main"


@dataclass(frozen=True)
class Branch:
    """The branch ``name`` of ``table`` that a script writes to. ``base``: the table's snapshot that it began with.

    ``empty``: whether the table had none.
    """

    session: Any
    table: str
    name: str
    base: str
    empty: bool

    @classmethod
    def create(cls, session: Any, table: str, name: str) -> Branch:
        """A branch with what readers see now. Raises ``CannotStage``."""
        if not is_audited(session, table):
            raise CannotStage(
                f"{table} lacks {AUDITED}=true, so {BRANCH} would not redirect the script's commits: ALTER TABLE {table} SET "
                f"TBLPROPERTIES ('{AUDITED}'='true')"
            )
        change_branches(session, table, f"CREATE BRANCH {name}")
        found = branches(session, table)
        return cls(session, table, name, found[name], _MAIN not in found)

    def head(self) -> str:
        """The branch's snapshot, as the table has it now. Raises ``CannotStage``."""
        found = branches(self.session, self.table)
        if not self.empty and _MAIN not in found:
            catalog, *name = parts_of(self.table)
            raise CannotStage(
                f"the script replaced {self.table} as a whole (createOrReplace, or saveAsTable with mode overwrite), which "
                f"{BRANCH} does not redirect, so its readers see no rows: CALL {catalog}.system.set_current_snapshot("
                f"'{joined(name)}', {self.base}) brings them back. Let the script overwrite partitions, or write to a "
                "{stage_table:NAME}"
            )
        if self.name not in found:
            raise CannotStage(
                f"the script dropped the branch {self.name} of {self.table}, which its commits were redirected to"
            )
        return found[self.name]

    def rows(self, condition: str) -> Any:
        """What the branch has of the interval whose ``condition`` this is.

        Raises ``OtherInterval`` if the script has changed rows of others, and ``CannotStage`` if somebody else has changed the
        interval's own meanwhile, which the script may have read.
        """
        head = self.head()
        before = as_of(self.session, self.table, int(self.base))
        if not same_rows(before, self.session.table(self.table), condition):
            raise CannotStage(
                f"rows of the interval in {self.table} were changed while the script ran, and it may have read others: run it again"
            )
        if head != self.base:
            self._refuse_others(int(head), f"NOT coalesce({condition}, false)")
        return as_of(self.session, self.table, int(head)).where(condition)

    def _refuse_others(self, head: int, elsewhere: str) -> None:
        changes = self.session.read.option("start-snapshot-id", self.base).option("end-snapshot-id", head)
        try:
            found = changes.table(f"{self.table}.changes").where(elsewhere).limit(1).collect()
        except Exception as e:
            if _DELETE_FILES not in str(e):
                raise
            before, after = (as_of(self.session, self.table, each) for each in (int(self.base), head))
            found = [] if same_rows(before, after, elsewhere) else [None]
        if found:
            row = "" if found[0] is None else f", such as {_shown(found[0])}"
            raise OtherInterval(
                f"the script changed rows of {self.table} outside of its interval{row}: let it write only the rows of that "
                "(INSERT OVERWRITE needs spark.sql.sources.partitionOverwriteMode=dynamic)"
            )


def branches(session: Any, table: str) -> dict[str, str]:
    """The snapshots of the table's branches, as it has them now, by name."""
    session.sql(f"REFRESH TABLE {table}")
    found = session.table(f"{table}.refs").where("type = 'BRANCH'").collect()
    return {row.name: str(row.snapshot_id) for row in found}


def drop(session: Any, table: str, branch: str) -> None:
    """Drop a branch. Its files are deleted when the table's snapshots expire."""
    change_branches(session, table, f"DROP BRANCH IF EXISTS {branch}")


def _shown(row: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in row.asDict().items() if not name.startswith("_"))[:200]
