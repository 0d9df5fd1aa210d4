"""Iceberg: a commit is refused if another one has changed rows of its intervals since a snapshot.

The publisher notes that snapshot before it asks for permission.

``spark.wap.branch`` sends a script's commits to a branch, and readers of the table do not see them. Such a script knows
nothing of Retrofill, and writes to the table by its own name. Afterwards the interval's rows of the branch are staged like
any others.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from typing import Any, Collection, Sequence

from retrofill.outputs.cannot_stage import CannotStage, OtherInterval
from retrofill.outputs.tables.changes import Versioned, aligned, as_of, same_rows
from retrofill.outputs.tables.group import Commit, Group, ids_in, separates, transforms
from retrofill.outputs.tables.protocol import Burned, Filled, Looked, NotPublished, NotSeen, properties_of
from retrofill.protocol.table_output import TableOutput, joined, parts_of
from retrofill.sdk.texts import BRANCH, REDIRECTIONS

# As Spark shows them. Columns are in lines of their own, which begin with their names.
_PARTITIONS = re.compile(r"^PARTITIONED BY \(.*\)$", re.MULTILINE)
AUDITED = "write.wap.enabled"
# The catalog, the namespace and the table.
_PARTS_OF_A_TABLE = 3
# Together about ten seconds.
_TRIES, _FIRST_PAUSE, _MAX_PAUSE = 10, 0.1, 2.0
MIXED = (
    "{table} has a file with rows of several intervals, of which Iceberg cannot replace a part: partition it so that each "
    "file has rows of one interval, by its column or by hours of it, and rewrite its files (rewrite_data_files, rewrite-all)"
)


class IcebergTarget:
    """Implements ``Target``."""

    def __init__(self, session: Any, table: str) -> None:
        self._session = session
        self._table = table
        self._properties = properties_of(session, table)

    def refuse(self, conditions: Sequence[str]) -> None:
        self._refuse_part_of_a_table()
        _refuse_redirected(self._session, self._table)
        if not self._replaces_whole_files(conditions):
            raise CannotStage(MIXED.format(table=self._table))

    def create(self, staged: str, schema: Any) -> Filled:  # noqa: ARG002 - it is created with its rows
        return Filled()

    def create_like(self, staged: str) -> Filled:
        (shown,) = self._session.sql(f"SHOW CREATE TABLE {self._table}").collect()
        found = _PARTITIONS.search(shown[0])
        partitions = found.group() if found else ""
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in self._own.items())
        self._session.sql(
            f"CREATE TABLE {staged} USING iceberg {partitions} TBLPROPERTIES ({properties}) "
            f"AS SELECT * FROM {self._table} WHERE false"
        )
        _refuse_redirected(self._session, staged)
        return Filled()

    @property
    def _own(self) -> dict[str, str]:
        """The properties of a staged table. A catalog's defaults may be others."""
        return {"gc.enabled": "true", AUDITED: "false", "format-version": self._properties.get("format-version", "2")}

    def write(self, rows: Any, output: TableOutput) -> None:
        writer = rows.writeTo(output.staged).using("iceberg")
        for name, value in self._own.items():
            writer = writer.tableProperty(name, value)
        writer.create()
        # A catalog may override them.
        _refuse_redirected(self._session, output.staged)

    def _refuse_part_of_a_table(self) -> None:
        """Iceberg takes ``t.branch_b`` for a branch of ``t``."""
        *parent, part = parts_of(self._table)
        if len(parent) >= _PARTS_OF_A_TABLE and self._session.catalog.tableExists(joined(parent)):
            raise CannotStage(
                f"{part} is a part of {joined(parent)}, where its readers do not look: stage {joined(parent)}"
            )

    def _replaces_whole_files(self, conditions: Sequence[str]) -> bool:
        """Whether Iceberg would delete these rows by whole files, each of them of one condition. Only plans the statement."""
        condition = " OR ".join(f"({each})" for each in conditions)
        (row,) = self._session.sql(f"EXPLAIN DELETE FROM {self._table} WHERE {condition}").collect()
        return any(line.startswith("DeleteFromTable") for line in str(row[0]).splitlines()[:2])


def is_audited(session: Any, table: str) -> bool:
    """Whether a session's ``REDIRECTIONS`` apply to commits to the table."""
    return properties_of(session, table).get(AUDITED, "").lower() == "true"


def _refuse_redirected(session: Any, table: str) -> None:
    """Raise ``CannotStage`` if the session's commits to the table would not become its current state."""
    setting = next((name for name in REDIRECTIONS if session.conf.get(name, "")), None)
    if setting is not None and is_audited(session, table):
        raise CannotStage(
            f"{table} has {AUDITED}=true and the session {setting}={session.conf.get(setting, '')}, so its readers would not "
            f"see the rows: call run.spark.conf.unset('{setting}') first, and request the backfill with --review to audit them"
        )


def use_current_state(session: Any) -> None:
    """Let a session of ours read and commit what the tables' readers see, whatever the server's settings are."""
    for name in REDIRECTIONS:
        session.conf.unset(name)


# Iceberg replaces whole files.
_MIXED_FILE = "some, but not all, rows match filter"
# Begins the names of our properties of a snapshot.
_PREFIX = "retrofill."
# What is read of a snapshot's summary.
_PROPERTIES = ("installation", "pipeline", "backfill_id", "attempt_id", "runs", "undoes", "column", "intervals")


class Iceberg(Versioned):
    """Implements ``Format``."""

    # A commit is fenced by the rows that it changes, not by what is in it.
    fixed = False

    def __init__(self, session: Any, table: str) -> None:
        self.session = session
        self.table = table
        self._position: int | None = None

    def identity(self) -> str:
        # Its uuid is in no metadata table. What is said of the table comes after its columns, of which one may have that name.
        found = self.session.sql(f"DESCRIBE TABLE EXTENDED {self.table}").collect()
        location = [row.data_type for row in found if row.col_name == "Location"][-1]
        # Hadoop has three names for S3.
        return "iceberg " + re.sub(r"^s3[an]:", "s3:", location.rstrip("/"))

    def groups(self, whole: Group) -> list[Group]:
        if len(whole.members) == 1 or separates(transforms(self.session, self.table), whole):
            return [whole]
        # A file with rows of several intervals could never be replaced by the interval again.
        return whole.singles()

    def conflicts_always(self) -> bool:
        """Iceberg repeats a commit by itself if the other one has changed other files."""
        return False

    def version(self) -> str:
        use_current_state(self.session)
        # The session may know an older state, from which the last publisher's commit is missing.
        self.session.sql(f"REFRESH TABLE {self.table}")
        # Unlike a query of its metadata, this needs no Spark job.
        found = self.session.sql(f"SHOW TBLPROPERTIES {self.table} ('current-snapshot-id')").collect()
        return str(found[0].value) if found[0].value.isdecimal() else ""

    def number(self, version: str) -> str:
        return version

    def predecessor(self, published: str) -> str | None:  # noqa: ARG002 - it is validated from what was looked at
        return None

    def look(self, group: Group, *, again: bool) -> Looked:
        self._note_position()
        return Looked(self._published(group) if again else {})

    def replace(self, rows: Any, group: Group) -> str | Burned:
        from pyspark.sql.functions import expr

        schema = self.session.table(self.table).schema
        if rows.columns != schema.names:
            # A column was added to the table since the rows were staged, or dropped.
            rows = aligned(rows, schema)
        writer = rows.writeTo(self.table).option("isolation-level", "serializable")
        if self._position is not None:
            # Without one the whole history is searched for conflicts.
            writer = writer.option("validate-from-snapshot-id", self._position)
        for name, value in group.marker.items():
            writer = writer.option(f"snapshot-property.{_PREFIX}{name}", value)
        try:
            writer.overwrite(expr(group.condition))
        except Exception as e:
            if _MIXED_FILE in str(e):
                raise NotPublished(MIXED.format(table=self.table)) from e
            raise
        published = self._published(group)
        if not all(run.id in published for run in group.runs):
            # The session may have loaded an older state meanwhile.
            self.version()
            published = self._published(group)
        if not all(run.id in published for run in group.runs):
            raise NotSeen(
                f"the commit to {self.table} is not among the snapshots that its readers see: a setting such as "
                "spark.wap.branch or spark.wap.id sends it elsewhere"
            )
        return published[group.runs[0].id]

    def burn(self, group: Group, why: str) -> str | Burned:  # noqa: ARG002 - there is nothing to be burned
        """What fences a publisher that is replaced is its position; that of a failed run has ended by then."""
        return Burned(why, at_once=True)

    def keep(self, group: Group, versions: Collection[str], days: int) -> None:
        """A branch with the snapshots of the commit and before it. Both are needed, and two tags are two commits."""
        first = min(group.runs, key=lambda run: run.id).id
        for version in versions:
            branch = f"`retrofill_{group.launch.installation[:8]}_{first}`"
            # Its age is that of the commit.
            kept = f"AS OF VERSION {version} RETAIN {days} DAYS WITH SNAPSHOT RETENTION 2 SNAPSHOTS"
            change_branches(self.session, self.table, f"CREATE BRANCH IF NOT EXISTS {branch} {kept}")

    def history(self) -> Sequence[Commit]:
        if self._position is None:
            self._note_position()
        found = {row.snapshot_id: _commit(row) for row in self._snapshots().collect()}
        commits, at = [], self._position
        # Those of other branches are not what readers see, and an expired one is not there.
        while at is not None and at in found:
            commits.append(found[at])
            at = found[at].before
        return commits

    def _note_position(self) -> None:
        version = self.version()
        self._position = int(version) if version else None

    def _published(self, group: Group) -> dict[int, str]:
        """The versions of the group's runs that are published, by id."""
        from pyspark.sql.functions import col

        of_attempt = (col("installation") == group.marker["installation"]) & (col("attempt_id") == str(group.attempt))
        seen = self.session.table(f"{self.table}.history").where("is_current_ancestor").select("snapshot_id")
        commits = [
            _commit(row) for row in self._snapshots().where(of_attempt).join(seen, "snapshot_id", "semi").collect()
        ]
        runs = [(commit, ids_in(commit.about["runs"])) for commit in commits]
        return {run.id: str(commit.version) for commit, ids in runs for run in group.runs if run.id in ids}

    def _snapshots(self) -> Any:
        from pyspark.sql.functions import col

        properties = (col("summary")[_PREFIX + name].alias(name) for name in _PROPERTIES)
        return self.session.table(f"{self.table}.snapshots").select("snapshot_id", "parent_id", *properties)


def _commit(row: Any) -> Commit:
    about = {name: row[name] for name in _PROPERTIES if row[name] is not None}
    return Commit(row.snapshot_id, row.parent_id, about if "runs" in about else {})


def change_branches(session: Any, table: str, change: str) -> None:
    """Execute ``ALTER TABLE`` with a ``change`` of branches.

    Unlike a commit of rows, Iceberg does not repeat one of branches by itself if another commit came first.
    """
    for number in range(1, _TRIES + 1):
        try:
            session.sql(f"ALTER TABLE {table} {change}")
        except Exception as e:
            if "CommitFailedException" not in str(e) or number == _TRIES:
                raise
            time.sleep(min(_FIRST_PAUSE * 2.0**number, _MAX_PAUSE) * random.uniform(0.5, 1.5))
            session.sql(f"REFRESH TABLE {table}")
        else:
            return


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


def drop_branch(session: Any, table: str, branch: str) -> None:
    """Drop a branch. Its files are deleted when the table's snapshots expire."""
    change_branches(session, table, f"DROP BRANCH IF EXISTS {branch}")


def _shown(row: Any) -> str:
    return ", ".join(f"{name} = {value}" for name, value in row.asDict().items() if not name.startswith("_"))[:200]
