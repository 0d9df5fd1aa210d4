"""How Iceberg and Delta replace the rows of an interval in one commit, exactly once.

A commit is fenced by the table itself, not by a check before it (``docs/decisions/tables.md``):

- Iceberg: it is refused if another commit has changed rows of the interval since the snapshot that the
  publisher had seen before it asked for permission.
- Delta: the table remembers the last attempt for each interval, and skips the commits of earlier ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Mapping, Protocol

from retrofill.driver.kept import NotKept
from retrofill.driver.table_output import quoted
from retrofill.errors import first_line

RECENT_COMMITS = 20
# Of Iceberg, which replaces whole files.
_MIXED_FILE = "some, but not all, rows match filter"
_PREFIX = "retrofill."
# What tells of which interval a commit is.
_OF_AN_INTERVAL = ("installation", "pipeline", "interval_start", "interval_end", "column")


# How long Iceberg keeps a snapshot is counted from its commit.
_DAY_SECONDS = 86_400
_AGE = "unix_timestamp() - unix_timestamp(committed_at)"

# What tells of which backfill's interval one is.
_OF_A_BACKFILLS_INTERVAL = ("installation", "backfill_id", "interval_start")


class NotPublished(Exception):
    """The table does not take the commit, and another try cannot help. The message is one line."""


@dataclass(frozen=True)
class Marker:
    """What a commit says of itself in the table's metadata, by name."""

    values: Mapping[str, str]

    @property
    def identity(self) -> dict[str, str]:
        """What tells the commit of a run, or of an undo of a run, from all others."""
        return self.only("installation", "run_id" if "run_id" in self.values else "undoes")

    def only(self, *names: str) -> dict[str, str]:
        return {name: self.values[name] for name in names}


def of_run(installation: str, run_id: int) -> Marker:
    """The part of a run's marker that identifies the run."""
    return Marker({"installation": installation, "run_id": str(run_id)})


def of_undo(installation: str, run_id: int) -> Marker:
    """The part of the marker of a run's undo that identifies it."""
    return Marker({"installation": installation, "undoes": str(run_id)})


class Format(Protocol):
    """A table of a format. Methods raise whatever Spark does."""

    def __init__(self, session: Any, table: str) -> None: ...

    def look(self, marker: Marker, *, again: bool) -> str | None:
        """Note the table's state, from which a commit is valid. If there must be no other, return its version.

        ``again``: the run may be published already. To be called before permission to publish is asked
        for: whoever replaces this publisher commits after that.
        """

    def published(self, marker: Marker) -> str | None:
        """The table's version since a commit of the marker's run, if it has one."""

    def runs_published(self, marker: Marker) -> int:
        """How many runs of the marker's attempt are published."""

    def replace(self, rows: Any, condition: str, marker: Marker) -> str | None:
        """Replace the rows that meet the condition. Returns the version, if it can be told. Raises ``NotPublished``."""

    def keep(self, marker: Marker, days: int) -> None:
        """Keep what the commit of the marker's run replaced. Idempotent."""

    def before(self, marker: Marker) -> Any:
        """The whole table as it was before the first commit of that backfill for that interval.

        A run may have replaced a failed one of the same backfill. Raises ``NotKept``.
        """

    def after(self, marker: Marker) -> Any:
        """The whole table as it was after that commit. Raises ``NotKept``."""

    def only_others_since(self, marker: Marker, own: Marker) -> bool:
        """Whether all commits between that one and ``look`` say that they replaced other intervals than ``own``.

        False if that cannot be told. Raises ``NotKept``.
        """


def provider_of(session: Any, table: str) -> str:
    """The format of a table, in lower case."""
    from pyspark.sql.functions import col

    rows = session.sql(f"DESCRIBE TABLE EXTENDED {table}").where(col("col_name") == "Provider").collect()
    return str(rows[0].data_type).lower() if rows else "unknown"


class Iceberg:
    """A commit is valid only if nothing has changed rows of its interval since a snapshot."""

    def __init__(self, session: Any, table: str) -> None:
        self.session = session
        self.table = table
        self._position: int | None = None
        # The snapshot of the run, once it is found.
        self._own: Any = None
        self._ages: dict[int, int] = {}

    def look(self, marker: Marker, *, again: bool) -> str | None:
        # The session may know an older state, from which the last publisher's marker is missing.
        self.session.sql(f"REFRESH TABLE {self.table}").collect()
        # Unlike a query of its metadata, this needs no Spark job.
        found = self.session.sql(f"SHOW TBLPROPERTIES {self.table} ('current-snapshot-id')").collect()
        self._position = int(found[0].value) if found[0].value.isdecimal() else None
        return self.published(marker) if again else None

    def published(self, marker: Marker) -> str | None:
        from pyspark.sql.functions import col, expr, lit

        ours = lit(True)
        for name, value in marker.identity.items():
            ours &= col("summary")[_PREFIX + name].eqNullSafe(value)
        # Most probably its parent.
        wanted = ours if self._position is None else ours | (col("snapshot_id") == self._position)
        columns = ("snapshot_id", "parent_id", "committed_at", ours.alias("ours"), expr(_AGE).alias("age"))
        found = self.session.table(f"{self.table}.snapshots").where(wanted).select(*columns).collect()
        self._ages = {row.snapshot_id: int(row.age) for row in found}
        self._own = next((row for row in found if row.ours), None)
        return None if self._own is None else str(self._own.snapshot_id)

    def runs_published(self, marker: Marker) -> int:
        from pyspark.sql.functions import col

        of_attempt = self._snapshots(marker.only("installation", "attempt_id"))
        return int(of_attempt.select(col("summary")[f"{_PREFIX}run_id"]).distinct().count())

    def _snapshots(self, having: Mapping[str, str]) -> Any:
        from pyspark.sql.functions import col

        snapshots = self.session.table(f"{self.table}.snapshots")
        for name, value in having.items():
            snapshots = snapshots.where(col("summary")[_PREFIX + name] == value)
        return snapshots

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
        """Tag the snapshot before the commit, until then."""
        if self._own is None:
            self.published(marker)
        if self._own is None:
            return
        tag = f"{_PREFIX[:-1]}_{marker.values['installation'][:8]}_{marker.values['run_id']}"
        for name, id in (("before", self._own.parent_id), ("after", self._own.snapshot_id)):
            if id is not None:
                # A tag's age is that of its snapshot.
                retained = days + 1 + self._age_seconds(id) // _DAY_SECONDS
                version = f"AS OF VERSION {id} RETAIN {retained} DAYS"
                self.session.sql(
                    f"ALTER TABLE {self.table} CREATE TAG IF NOT EXISTS `{tag}_{name}` {version}"
                ).collect()

    def before(self, marker: Marker) -> Any:
        self._commit(marker)
        summary = self._snapshots(marker.only("installation", "run_id")).select("summary").collect()[0].summary
        of_interval = {name: summary[_PREFIX + name] for name in _OF_A_BACKFILLS_INTERVAL}
        first = self._snapshots(of_interval).orderBy("committed_at").select("parent_id").first()
        return (
            self.session.table(self.table).where("false") if first.parent_id is None else self._as_of(first.parent_id)
        )

    def after(self, marker: Marker) -> Any:
        return self._as_of(self._commit(marker).snapshot_id)

    def only_others_since(self, marker: Marker, own: Marker) -> bool:
        from pyspark.sql.functions import col

        commit = self._commit(marker)
        about = [col("summary")[_PREFIX + name].alias(name) for name in _OF_AN_INTERVAL]
        later = self.session.table(f"{self.table}.snapshots").where(col("committed_at") >= commit.committed_at)
        found = {row.snapshot_id: row for row in later.select("snapshot_id", "parent_id", *about).collect()}
        at = self._position
        # One that has expired, in between, may have been anybody's.
        while at != commit.snapshot_id:
            if at not in found or not _is_of_another(found[at].asDict(), own):
                return False
            at = found[at].parent_id
        return True

    def _age_seconds(self, id: int) -> int:
        """Since a snapshot's commit, by Spark's clock."""
        if id in self._ages:
            return self._ages[id]
        found = self.session.table(f"{self.table}.snapshots").where(f"snapshot_id = {id}")
        age = found.selectExpr(f"{_AGE} AS age").collect()
        return int(age[0].age) if age else 0

    def _commit(self, marker: Marker) -> Any:
        """The snapshot of a run, with its parent. Raises ``NotKept``."""
        self.session.sql(f"REFRESH TABLE {self.table}").collect()
        other = Iceberg(self.session, self.table)
        if other.published(marker) is None:
            raise NotKept(_expired(self.table, marker))
        return other._own

    def _as_of(self, id: int) -> Any:
        from pyspark.errors import AnalysisException, IllegalArgumentException

        try:
            rows = self.session.sql(f"SELECT * FROM {self.table} VERSION AS OF {id}")
            # Spark Connect may look for the snapshot only now.
            rows.schema  # noqa: B018
        except (AnalysisException, IllegalArgumentException) as e:
            raise NotKept(f"snapshot {id} of {self.table} cannot be restored: {first_line(e)}") from e
        return rows


class Delta:
    """A table remembers the highest ``txnVersion`` of each ``txnAppId``; what is not higher is skipped silently."""

    def __init__(self, session: Any, table: str) -> None:
        self.session = session
        self.table = table

    def look(self, marker: Marker, *, again: bool) -> str | None:  # noqa: ARG002 - the attempt's id is the fence
        """A commit may be repeated: the table skips it, at once."""
        return None

    def published(self, marker: Marker) -> str | None:
        of_run = marker.identity
        found = self._commits(of_run, f" LIMIT {RECENT_COMMITS}") or self._commits(of_run)
        return found[0][0] if found else None

    def runs_published(self, marker: Marker) -> int:
        return len({each["run_id"] for _, each in self._commits(marker.only("installation", "attempt_id"))})

    def replace(self, rows: Any, condition: str, marker: Marker) -> str | None:
        from pyspark.sql.functions import expr

        values = marker.values
        application = f"retrofill {values['installation']} {values['pipeline']} {values['interval_start']}"
        writer = rows.writeTo(self.table).option("txnAppId", application).option("txnVersion", values["attempt_id"])
        writer.option("userMetadata", json.dumps({"retrofill": dict(values)})).overwrite(expr(condition))
        version = self.published(marker)
        if version is None:
            raise NotPublished(
                f"{self.table} has skipped the rows of attempt {values['attempt_id']}: its log has a later attempt for the "
                "interval"
            )
        return version

    def keep(self, marker: Marker, days: int) -> None:
        """Delta keeps earlier versions by the table's own settings."""

    def before(self, marker: Marker) -> Any:
        (_, about), *_rest = self._commits(marker.identity) or [(self._version(marker), {})]
        of_interval = {name: about[name] for name in _OF_A_BACKFILLS_INTERVAL}
        return self._as_of(int(self._commits(of_interval)[-1][0]) - 1)

    def after(self, marker: Marker) -> Any:
        return self._as_of(int(self._version(marker)))

    def only_others_since(self, marker: Marker, own: Marker) -> bool:
        first = int(self._version(marker)) + 1
        (last,) = self.session.sql(f"DESCRIBE HISTORY {self.table} LIMIT 1").select("version").collect()
        later = last.version + 1 - first
        if not later:
            return True
        ours = {int(version): about for version, about in self._commits({}, f" LIMIT {later}")}
        return all(_is_of_another(ours.get(first + n, {}), own) for n in range(later))

    def _version(self, marker: Marker) -> str:
        version = self.published(marker)
        if version is None:
            raise NotKept(_expired(self.table, marker))
        return version

    def _as_of(self, version: int) -> Any:
        from pyspark.errors import AnalysisException

        try:
            rows = self.session.sql(f"SELECT * FROM {self.table} VERSION AS OF {version}")
            # Spark Connect may look for the version only now.
            rows.schema  # noqa: B018
        except AnalysisException as e:
            raise NotKept(f"version {version} of {self.table} cannot be restored: {first_line(e)}") from e
        return rows

    def _commits(self, having: Mapping[str, str], limit: str = "") -> list[tuple[str, dict[str, str]]]:
        """The versions of our commits, the latest first, and what they say of themselves."""
        from pyspark.sql.functions import col

        history = self.session.sql(f"DESCRIBE HISTORY {self.table}{limit}").select("version", "userMetadata")
        ours = history.where(col("userMetadata").contains('"retrofill"')).collect()
        commits = [(str(row.version), json.loads(row.userMetadata)["retrofill"]) for row in ours]
        return [(version, about) for version, about in commits if having.items() <= about.items()]


def _is_of_another(about: Mapping[str, Any], own: Marker) -> bool:
    """Whether a commit says that it replaced another interval of the same pipeline."""
    if any(about.get(name) != own.values[name] for name in ("installation", "pipeline", "column")):
        return False
    given = (about["interval_start"], about["interval_end"], own.values["interval_start"], own.values["interval_end"])
    start, end, own_start, own_end = map(datetime.fromisoformat, given)
    return end <= own_start or own_end <= start


def _expired(table: str, marker: Marker) -> str:
    (run_id,) = (value for name, value in marker.identity.items() if name != "installation")
    return f"the commit of run {run_id} is no longer in the history of {table}: it cannot be undone"


def same_rows(one: Any, other: Any, condition: str) -> bool:
    """Whether two states of a table have the same rows that meet the condition, in any order."""
    return bool(_digest(aligned(one, other.schema), condition) == _digest(other, condition))


def aligned(rows: Any, schema: Any) -> Any:
    """Rows of an earlier state of a table with the columns that it has now: new ones are null, former ones left out."""
    from pyspark.sql.functions import col, lit

    have = {name.lower() for name in rows.columns}
    columns = (col(quoted(field.name)) if field.name.lower() in have else lit(None) for field in schema)
    return rows.select(*(each.cast(field.dataType).alias(field.name) for each, field in zip(columns, schema)))


def _digest(rows: Any, condition: str) -> Any:
    """The number of rows and the sum of their hashes."""
    from pyspark.sql.functions import col, struct, to_json, xxhash64

    columns = []
    for field in sorted(rows.schema, key=lambda each: each.name.lower()):
        plain = not any(each in field.dataType.simpleString() for each in ("map<", "variant"))
        column = col(quoted(field.name))
        columns.append(column if plain else to_json(struct(column)))
        if field.nullable:
            # The hash passes over nulls.
            columns.append(column.isNull())
    hashed = rows.where(condition).select(xxhash64(*columns).cast("decimal(38,0)").alias("hash"))
    return tuple(hashed.selectExpr("count(*)", "sum(hash)").collect()[0])


# By the name that Spark has for the format.
FORMATS: Mapping[str, type[Format]] = {"iceberg": Iceberg, "delta": Delta}
