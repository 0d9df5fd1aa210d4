"""Iceberg: a commit is refused if another one has changed rows of its interval since a snapshot.

The publisher notes that snapshot before it asks for permission.
"""

from __future__ import annotations

from typing import Any, Mapping

from retrofill.driver.kept import NotKept
from retrofill.driver.tables.marker import OF_A_BACKFILLS_INTERVAL, OF_AN_INTERVAL, Marker, expired, is_of_another
from retrofill.driver.tables.protocol import NotPublished
from retrofill.driver.tables.states import as_of

# Iceberg replaces whole files.
_MIXED_FILE = "some, but not all, rows match filter"
# Begins the names of our properties of a snapshot.
_PREFIX = "retrofill."
# How long Iceberg keeps a snapshot is counted from its commit.
_DAY_SECONDS = 86_400
_AGE = "unix_timestamp() - unix_timestamp(committed_at)"


class Iceberg:
    """Implements ``Format``."""

    def __init__(self, session: Any, table: str) -> None:
        self.session = session
        self.table = table
        self._position: int | None = None
        # The snapshot of the run, once it is found.
        self._own: Any = None
        self._ages: dict[int, int] = {}

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
        """Tag the snapshots of the commit and before it."""
        own = self._own or self._find(marker)
        if own is None:
            return
        tag = f"retrofill_{marker.values['installation'][:8]}_{marker.values['run_id']}"
        for name, id in (("before", own.parent_id), ("after", own.snapshot_id)):
            if id is not None:
                # A tag's age is that of its snapshot.
                retained = days + 1 + self._age_seconds(id) // _DAY_SECONDS
                version = f"AS OF VERSION {id} RETAIN {retained} DAYS"
                self.session.sql(
                    f"ALTER TABLE {self.table} CREATE TAG IF NOT EXISTS `{tag}_{name}` {version}"
                ).collect()

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
        from pyspark.sql.functions import col, expr

        ours = _says(marker.identity)
        # Most probably its parent, of which ``keep`` wants the age.
        wanted = ours if self._position is None else ours | (col("snapshot_id") == self._position)
        columns = ("snapshot_id", "parent_id", "committed_at", "summary", ours.alias("ours"), expr(_AGE).alias("age"))
        found = self._snapshots().where(wanted).select(*columns).collect()
        self._ages.update((row.snapshot_id, int(row.age)) for row in found)
        return next((row for row in found if row.ours), None)

    def _age_seconds(self, id: int) -> int:
        """Since a snapshot's commit, by Spark's clock."""
        if id in self._ages:
            return self._ages[id]
        age = self._snapshots().where(f"snapshot_id = {id}").selectExpr(f"{_AGE} AS age").collect()
        return int(age[0].age) if age else 0

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
