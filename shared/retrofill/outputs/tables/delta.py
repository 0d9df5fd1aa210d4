"""Delta: a table remembers the ``txnVersion`` of each ``txnAppId``, and skips a commit that has none higher.

Each group has an id of its own and the version 1. So its log decides once: the group is committed, or it is burned by an
empty commit with the same id. A version that grows with each publication would not fence a publisher that was stopped
before its commit and wakes up after a later one.
"""

from __future__ import annotations

import json
import uuid
from typing import Any, Collection, Mapping, Sequence

from retrofill.outputs.tables.changes import Versioned
from retrofill.outputs.tables.group import Group
from retrofill.outputs.tables.marker import Commit
from retrofill.outputs.tables.protocol import Burned, Looked, NotPublished

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
            .option("userMetadata", json.dumps({"retrofill": dict(marker)}))
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
            Commit(row.version, row.version - 1 if row.version else None, _about(row.userMetadata)) for row in history
        ]


def _about(metadata: str | None) -> dict[str, str]:
    """What a commit of ours says of itself. Others may have the word in what they say."""
    try:
        said = json.loads(metadata or "")
    except ValueError:
        return {}
    about = said.get("retrofill") if isinstance(said, dict) else None
    return about if isinstance(about, dict) else {}
