"""The interface of a table's format: replace the rows of a group in one commit, exactly once, tell its history, and hold
staged rows to the target's own rules. What all formats share is here, too: a table's properties, and dropping a staged one.

A commit is fenced by the table itself, not by a check before it (``docs/decisions/tables.md``).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Collection, Mapping, Protocol, Sequence

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.outputs.tables.group import Group
from retrofill.protocol.table_output import TableOutput, parts_of
from retrofill.sdk.texts import path_in

log = get_log(__name__)


class NotPublished(Exception):
    """The table does not take the commit, and another try cannot help. The message is one line."""


class TableGone(NotPublished):
    """The table does not exist any more, so nobody can publish into it."""


class NotSeen(NotPublished):
    """A commit was made, but not to what readers see."""


@dataclass(frozen=True)
class Burned:
    """No publisher can commit the group any more. ``why``: it was refused.

    ``at_once``: nobody has tried a smaller group either.
    """

    why: str
    at_once: bool = False


@dataclass(frozen=True)
class Looked:
    """What a table says of a group. ``versions``: of its runs that are published, by id. ``burned``: the group."""

    versions: Mapping[int, str] = field(default_factory=dict)
    burned: Burned | None = None


class Format(Protocol):
    """A table of a format. Methods raise whatever Spark does."""

    table: str
    fixed: bool
    """Whether its groups are a fixed tree. If not, a publisher forms them of any of its runs."""
    fenced: bool
    """Whether the table refuses the commit of a publisher that was replaced. If not, its session must be closed first."""

    def __init__(self, session: Any, table: str) -> None: ...

    def identity(self) -> str:
        """What tells the table from all others. It stays if the table gets another name."""

    def groups(self, whole: Group) -> list[Group]:
        """The groups to begin with: as large as the table's layout allows."""

    def version(self) -> str:
        """The table's present version: each commit makes another one, also after it was dropped and created again."""

    def number(self, version: str) -> str:
        """A version as Spark's ``VERSION AS OF`` takes it; empty for that of a table before its first commit."""

    def at(self, number: str) -> Any:
        """The whole table at a version of that number. Raises ``NotKept``."""

    def predecessor(self, published: str) -> str | None:
        """The version that a commit of ours replaced. ``None``: the one that was looked at, or it was refused."""

    def conflicts_always(self) -> bool:
        """Whether a commit is refused if any other was made meanwhile, whatever that has changed."""

    def look(self, group: Group, *, again: bool) -> Looked:
        """Note the table's state, from which a commit is valid.

        ``again``: runs may be published already, or the group burned. To be called before permission to publish is
        asked for: whoever replaces this publisher commits after that.
        """

    def replace(self, rows: Any, group: Group) -> str | Burned:
        """Replace the rows of the group's intervals. Returns the version. Raises ``NotPublished``."""

    def burn(self, group: Group, why: str) -> str | Burned:
        """Make sure that no publisher commits the group from now on. Returns the version if one has."""

    def keep(self, group: Group, versions: Collection[str], days: int) -> None:
        """Keep what the group's commits, which made these versions, replaced. Idempotent."""

    def is_begun(self, group: Group) -> bool:
        """Whether a former publisher may have replaced a part of these rows, so that they are neither one state nor the other."""

    def rows_before(self, group: Group) -> Any:
        """What ``Target.write`` takes for the rows that the intervals of an undo's runs had before the undone backfill.

        Raises ``NotKept``.
        """

    def changed(self, group: Group) -> Mapping[int, Exception]:
        """The runs of an undo that must not be published, by id, and why. Empty for other groups."""


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


# In the names of all staged tables.
OURS = "__retrofill_"
# Iceberg says so where gc.enabled is false.
_KEEPS_FILES = "GC is disabled"


def drop(session: Any, table: str) -> None:
    """Drop a staged table and its files."""
    try:
        session.sql(f"DROP TABLE IF EXISTS {table} PURGE")
    except Exception as e:
        if _KEEPS_FILES not in str(e):
            raise
        _drop_kept(session, table)
    name = parts_of(table)[-1]
    folder = Path(path_in(name) or name)
    # Nothing else is ever deleted, whatever a name may look like.
    if folder.is_absolute() and OURS in folder.name:
        # Spark only forgets a table that is named by its path.
        shutil.rmtree(folder, ignore_errors=True)


def _drop_kept(session: Any, table: str) -> None:
    """Drop a staged table of a catalog that sets ``gc.enabled=false`` for all tables."""
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('gc.enabled'='true')")
    try:
        session.sql(f"DROP TABLE IF EXISTS {table} PURGE")
    except Exception as e:  # noqa: BLE001 - such as Nessie, which sets it again: its own collection deletes the files
        log.info("files_of_staged_table_left_to_the_catalog", table=table, error=first_line(e))
        session.sql(f"DROP TABLE IF EXISTS {table}")
