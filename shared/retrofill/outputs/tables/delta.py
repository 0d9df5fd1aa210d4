"""Delta: a table remembers the ``txnVersion`` of each ``txnAppId``, and skips a commit that has none higher.

``CREATE TABLE … LIKE`` copies CHECK constraints, generated and identity columns, types, and the names of columns that need
column mapping. It takes a commit more, so a table without such rules gets a staged one of its rows' columns.

Each group has an id of its own and the version 1. So its log decides once: the group is committed, or it is burned by an
empty commit with the same id. A version that grows with each publication would not fence a publisher that was stopped
before its commit and wakes up after a later one.
"""

from __future__ import annotations

import re
import uuid
from json import dumps, loads
from typing import Any, Collection, Mapping, Sequence

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.outputs.cannot_stage import CannotStage, DoesNotFit
from retrofill.outputs.tables.changes import Versioned
from retrofill.outputs.tables.checks import nullable
from retrofill.outputs.tables.group import Commit, Group
from retrofill.outputs.tables.protocol import Burned, Filled, Looked, NotPublished, properties_of
from retrofill.protocol.table_output import TableOutput

log = get_log(__name__)
# Features, as the table's protocol names them, with rules that a table of the same columns does not have.
RULES = frozenset({"checkConstraints", "generatedColumns", "identityColumns", "columnMapping"})
_FEATURE = "delta.feature."
# Before features had names, each version of writers stood for those of the earlier ones too. Version 2 has no such rule.
_VERSIONS_WITH_RULES = range(3, 7)
# Of the types VARCHAR and CHAR, in the metadata of columns.
_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
# They are about the target's own files and readers.
NOT_COPIED = (
    "delta.redirect",
    "delta.universalFormat",
    "delta.logRetentionDuration",
    "delta.deletedFileRetentionDuration",
    "delta.setTransactionRetentionDuration",
)
# Spark reports the violation of a rule as the failure of a job.
_VIOLATION = re.compile(
    r"\[(?:DELTA_\w*(?:VIOLATE|EXCEED|IDENTITY|GENERATED)\w*|EXCEED_LIMIT_LENGTH)\] (.*?)(?=\n\s*(?:at |JVM|\n)|\n\n|\Z)",
    re.DOTALL,
)
_LONGEST = 500
_TRANSACTIONS = "delta.setTransactionRetentionDuration"
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_LEAST_SECONDS = 604_800


class DeltaTarget:
    """Implements ``Target``."""

    def __init__(self, session: Any, table: str) -> None:
        self._session = session
        self._table = table
        self._properties = properties_of(session, table)
        self._like = False

    def refuse(self, conditions: Sequence[str]) -> None:  # noqa: ARG002 - Delta replaces parts of files
        if self._properties.get("delta.appendOnly", "").lower() == "true":
            raise CannotStage(
                f"{self._table} has delta.appendOnly=true, which forbids to replace rows: set it to false, or stage another table"
            )
        kept = self._properties.get(_TRANSACTIONS)
        if kept is not None and not is_long_enough(kept):
            raise CannotStage(
                f"{self._table} has {_TRANSACTIONS}={kept}, so its log could forget what was published while a publisher "
                "that was stopped can still wake up: set it to 7 days or more, or unset it"
            )
        redirection = next((name for name in self._properties if name.startswith("delta.redirect")), None)
        if redirection is not None:
            raise CannotStage(f"{self._table} has {redirection}: stage the table to which it redirects")
        try:
            # Makes no commit, but Delta checks first whether it could make one.
            self._session.sql(f"DELETE FROM {self._table} WHERE false")
        except Exception as e:
            if "DELTA_" not in str(e):
                raise
            raise CannotStage(f"{self._table} cannot be written by this Spark: {first_line(e)}") from e

    def create(self, staged: str, schema: Any) -> Filled:
        if not self._has_rules(schema):
            return Filled()
        self._like = True
        return self.create_like(staged)

    def create_like(self, staged: str) -> Filled:
        self._create_like(staged)
        unwanted = [name for name in self._properties if name.startswith(NOT_COPIED)]
        if unwanted:
            names = ", ".join(f"'{name}'" for name in unwanted)
            self._session.sql(f"ALTER TABLE {staged} UNSET TBLPROPERTIES IF EXISTS ({names})")
        return self._filled(staged)

    def write(self, rows: Any, output: TableOutput) -> None:
        from pyspark.errors import AnalysisException

        writer = rows.writeTo(output.staged)
        try:
            writer.append() if self._like else writer.using("delta").create()
        except Exception as e:
            violation = _VIOLATION.search(str(e))
            if violation is None and not isinstance(e, AnalysisException):
                raise
            why = first_line(e) if violation is None else " ".join(violation.group(1).split())[:_LONGEST]
            raise DoesNotFit(f"the rows break a rule of {self._table}: {why}") from e

    def _has_rules(self, schema: Any) -> bool:
        version = int(self._properties.get("delta.minWriterVersion", 0))
        features = {name[len(_FEATURE) :] for name in self._properties if name.startswith(_FEATURE)}
        within = any(nullable(field.dataType) != field.dataType for field in schema)
        return version in _VERSIONS_WITH_RULES or bool(features & RULES) or _LENGTH in schema.json() or within

    def _create_like(self, staged: str) -> None:
        """``LIKE`` knows no tables that are named by a path, nor those of some catalogs. A clone does, but has files."""
        from pyspark.errors import AnalysisException

        try:
            self._session.sql(f"CREATE TABLE {staged} LIKE {self._table}")
            return
        except AnalysisException as e:
            log.info("table_cannot_be_created_like_the_target", table=self._table, error=first_line(e))
        try:
            self._session.sql(f"CREATE TABLE {staged} SHALLOW CLONE {self._table}")
            self._session.sql(f"DELETE FROM {staged}")
        except AnalysisException as e:
            raise CannotStage(
                f"{self._table} has rules, such as constraints, for which its catalog must create a table like it: {first_line(e)}"
            ) from e

    def _filled(self, staged: str) -> Filled:
        """Spark does not tell, but the first entry of the staged table's own log does."""
        (about,) = self._session.sql(f"DESCRIBE DETAIL {staged}").select("location").collect()
        log = self._session.read.text(f"{about.location}/_delta_log/{0:020}.json").where("value LIKE '{\"metaData\"%'")
        (line,) = log.collect()
        fields = loads(loads(line.value)["metaData"]["schemaString"])["fields"]
        identity = [each for each in fields if "delta.identity.start" in each["metadata"]]
        return Filled(
            when_staged=tuple(each["name"] for each in fields if "delta.generationExpression" in each["metadata"]),
            by_commit=tuple(each["name"] for each in identity),
            always=tuple(
                each["name"] for each in identity if not each["metadata"].get("delta.identity.allowExplicitInsert")
            ),
        )


def is_long_enough(interval: str) -> bool:
    """Whether an interval like ``interval 30 days`` is long enough for any publisher to have ended."""
    parts = re.findall(r"(\d+) +([a-z]+?)s?\b", interval.lower())
    return sum(int(number) * _SECONDS.get(unit, 0) for number, unit in parts) >= _LEAST_SECONDS


RECENT_COMMITS = 20
MAX_WHY = 1000
# Numbers begin again in a table that was created again.
_VERSION = ("version", "unix_millis(timestamp) AS at")
# Tables that this process has published. What has changed since only costs tries.
_PARTITIONED: dict[str, bool] = {}


class Delta(Versioned):
    """Implements ``Format``."""

    fixed = True

    def __init__(self, session: Any, table: str) -> None:
        self.session = session
        self.table = table

    def identity(self) -> str:
        (found,) = self.session.sql(f"DESCRIBE DETAIL {self.table}").select("id").collect()
        return f"delta {found.id}"

    def groups(self, whole: Group) -> list[Group]:
        return [whole]

    def conflicts_always(self) -> bool:
        """Only partitions tell Delta that two commits are about different rows."""
        if self.table not in _PARTITIONED:
            (detail,) = self.session.sql(f"DESCRIBE DETAIL {self.table}").select("partitionColumns").collect()
            _PARTITIONED[self.table] = bool(detail.partitionColumns)
        return not _PARTITIONED[self.table]

    def version(self) -> str:
        (last,) = self.session.sql(f"DESCRIBE HISTORY {self.table} LIMIT 1").selectExpr(*_VERSION).collect()
        return f"{last.version}@{last.at}"

    def number(self, version: str) -> str:
        return version.partition("@")[0]

    def predecessor(self, published: str) -> str | None:
        return str(int(published) - 1)

    def look(self, group: Group, *, again: bool) -> Looked:
        if not again:
            return Looked()
        found = self._of(group)
        if isinstance(found, Burned):
            return Looked(burned=found)
        return Looked() if found is None else Looked({run.id: found for run in group.runs})

    def replace(self, rows: Any, group: Group) -> str | Burned:
        self._refuse_other_table()
        # ``DataFrameWriterV2.overwrite`` loses the time zone of a moment in its condition (docs/decisions/tables.md).
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", group.condition)
        self._once(writer, group, group.marker).saveAsTable(self.table)
        return self._committed(group)

    def _refuse_other_table(self) -> None:
        """``saveAsTable`` would create a table that is gone, and replace one of another format. Of neither is there a history."""
        self.session.sql(f"DESCRIBE HISTORY {self.table} LIMIT 1")

    def burn(self, group: Group, why: str) -> str | Burned:
        # ``DELETE … WHERE false`` would write no transaction.
        nothing = self.session.table(self.table).drop(*group.output.filled).limit(0)
        marker = {"installation": group.launch.installation, "group": group.id, "burned_by": uuid.uuid4().hex}
        before = self._of(group)
        if before is not None:
            return before
        self._once(nothing.writeTo(self.table), group, {**marker, "burned": why[:MAX_WHY]}).append()
        return self._committed(group, marker["burned_by"])

    def keep(self, group: Group, versions: Collection[str], days: int) -> None:
        """Delta keeps earlier versions by the table's own settings."""

    def history(self) -> Sequence[Commit]:
        return self._commits()

    def _once(self, writer: Any, group: Group, marker: Mapping[str, str]) -> Any:
        return (
            writer.option("txnAppId", group.id)
            .option("txnVersion", "1")
            .option("userMetadata", dumps({"retrofill": dict(marker)}))
        )

    def _committed(self, group: Group, burner: str = "") -> str | Burned:
        found = self._of(group, burner)
        if found is None:
            raise NotPublished(
                f"{self.table} has no commit of group {group.id!r}: its history no longer has it or, on S3, another Spark "
                "server has overwritten the commit"
            )
        return found

    def _of(self, group: Group, burner: str = "") -> str | Burned | None:
        """The version of the group's commit, or that it is burned. ``burner``: names the attempt to burn it just made."""
        for limit in (f" LIMIT {RECENT_COMMITS}", ""):
            for commit in self._commits(limit):
                if commit.about.get("group") == group.id:
                    why = commit.about.get("burned")
                    # Halves are only tried once the group is burned. If another publisher was faster, it may have tried them.
                    ours = bool(burner) and commit.about.get("burned_by") == burner
                    return str(commit.version) if why is None else Burned(why, at_once=ours)
        return None

    def _commits(self, limit: str = "") -> list[Commit]:
        history = self.session.sql(f"DESCRIBE HISTORY {self.table}{limit}").select("version", "userMetadata").collect()
        return [
            Commit(row.version, row.version - 1 if row.version else None, about_of(row.userMetadata)) for row in history
        ]


def about_of(metadata: str | None) -> dict[str, str]:
    """What a commit of ours says of itself. Others may have the word in what they say."""
    try:
        said = loads(metadata or "")
    except ValueError:
        return {}
    about = said.get("retrofill") if isinstance(said, dict) else None
    return about if isinstance(about, dict) else {}
