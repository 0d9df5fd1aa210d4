"""Iceberg: a commit is refused if another one has changed rows of its interval since a snapshot.

The publisher notes that snapshot before it asks for permission.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

from retrofill.driver.kept import NotKept
from retrofill.driver.tables.marker import OF_A_BACKFILLS_INTERVAL, OF_AN_INTERVAL, Marker, expired, is_of_another
from retrofill.driver.tables.protocol import NotPublished
from retrofill.driver.tables.states import as_of

# Iceberg replaces whole files.
_MIXED_FILE = "some, but not all, rows match filter"
# Begins the names of our properties of a snapshot.
_PREFIX = "retrofill."


class Iceberg:
    """Implements ``Format``."""

    def __init__(self, session: Any, table: str) -> None:
        self.session = session
        self.table = table
        self._position: int | None = None
        # The snapshot of the run, once it is found.
        self._own: Any = None

    def identity(self) -> str:
        # Its uuid is in no metadata table. Hadoop has three names for S3.
        (found,) = self.session.sql(f"SHOW TBLPROPERTIES {self.table} ('location')").collect()
        return "iceberg " + re.sub(r"^s3[an]:", "s3:", found.value.rstrip("/"))

    def look(self, marker: Marker, *, again: bool) -> str | None:
        self._refresh()
        # Unlike a query of its metadata, this needs no Spark job.
        found = self.session.sql(f"SHOW TBLPROPERTIES {self.table} ('current-snapshot-id')").collect()
        self._position = int(found[0].value) if found[0].value.isdecimal() else None
        return self.published(marker) if again else None

    def published(self, marker: Marker) -> str | None:
        self._own = self._find(marker)
        return None if self._own is None else str(self._own.snapshot_id)

    def runs_published(self, marker: Marker) -> int:
        of_attempt = self._snapshots().where(_says(marker.only("installation", "attempt_id")))
        return int(of_attempt.select(_property("run_id")).distinct().count())

    def replace(self, rows: Any, condition: str, marker: Marker) -> str | None:
        from pyspark.sql.functions import expr

        writer = rows.writeTo(self.table).option("isolation-level", "serializable")
        if self._position is not None:
            # Without one the whole history is searched for conflicts.
            writer = writer.option("validate-from-snapshot-id", self._position)
        for name, value in marker.values.items():
            writer = writer.option(f"snapshot-property.{_PREFIX}{name}", value)
        try:
            writer.overwrite(expr(condition))
        except Exception as e:
            if _MIXED_FILE in str(e):
                raise NotPublished(
                    f"{self.table} has a file with rows of this interval and of others, of which Iceberg cannot replace a part: "
                    "partition the table by the interval, and rewrite its data files"
                ) from e
            raise
        return self.published(marker)

    def keep(self, marker: Marker, days: int) -> None:
        """A branch with the snapshots of the commit and before it. Both are needed, and two tags are two commits."""
        own = self._own or self._find(marker)
        if own is None:
            return
        branch = f"`retrofill_{marker.values['installation'][:8]}_{marker.values['run_id']}`"
        # Its age is that of the commit.
        kept = f"AS OF VERSION {own.snapshot_id} RETAIN {days} DAYS WITH SNAPSHOT RETENTION 2 SNAPSHOTS"
        self.session.sql(f"ALTER TABLE {self.table} CREATE BRANCH IF NOT EXISTS {branch} {kept}").collect()

    def before(self, marker: Marker) -> Any:
        summary = self._commit(marker).summary
        of_interval = _says({name: summary[_PREFIX + name] for name in OF_A_BACKFILLS_INTERVAL})
        first = self._snapshots().where(of_interval).orderBy("committed_at").select("parent_id").first()
        if first.parent_id is None:
            return self.session.table(self.table).where("false")
        return as_of(self.session, self.table, first.parent_id)

    def after(self, marker: Marker) -> Any:
        return as_of(self.session, self.table, self._commit(marker).snapshot_id)

    def only_others_since(self, marker: Marker, own: Marker) -> bool:
        from pyspark.sql.functions import col

        commit = self._commit(marker)
        later = self._snapshots().where(col("committed_at") >= commit.committed_at)
        about = (_property(name).alias(name) for name in OF_AN_INTERVAL)
        found = {row.snapshot_id: row for row in later.select("snapshot_id", "parent_id", *about).collect()}
        at = self._position
        # One that has expired, in between, may have been anybody's.
        while at != commit.snapshot_id:
            if at not in found or not is_of_another(found[at].asDict(), own):
                return False
            at = found[at].parent_id
        return True

    def _commit(self, marker: Marker) -> Any:
        """As ``_find``, of the table as it is now. Raises ``NotKept``."""
        self._refresh()
        found = self._find(marker)
        if found is None:
            raise NotKept(expired(self.table, marker))
        return found

    def _find(self, marker: Marker) -> Any:
        """The snapshot of the marker's run; ``None`` if there is none."""
        columns = ("snapshot_id", "committed_at", "summary")
        found = self._snapshots().where(_says(marker.identity)).select(*columns).collect()
        return found[0] if found else None

    def _refresh(self) -> None:
        """The session may know an older state, from which the last publisher's marker is missing."""
        self.session.sql(f"REFRESH TABLE {self.table}").collect()

    def _snapshots(self) -> Any:
        return self.session.table(f"{self.table}.snapshots")


def _property(name: str) -> Any:
    """What a snapshot says of itself."""
    from pyspark.sql.functions import col

    return col("summary")[_PREFIX + name]


def _says(about: Mapping[str, str]) -> Any:
    """Whether a snapshot says all this of itself."""
    from pyspark.sql.functions import lit

    condition = lit(True)
    for name, value in about.items():
        condition &= _property(name).eqNullSafe(value)
    return condition
