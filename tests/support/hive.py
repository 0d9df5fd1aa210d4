"""Tables whose partitions are in a catalog, and a Spark Connect server with a Hive metastore."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from retrofill.outputs.kept import AREA
from retrofill.protocol.table_output import TableOutput
from tests.support.lake import Attempt, Lake, Shared, server

KEEP_DAYS = 3
NAMES = itertools.count()


@contextmanager
def hive_server(**more: str) -> Iterator[str]:
    """The address of a server with an embedded metastore (Derby)."""
    with tempfile.TemporaryDirectory(prefix="retrofill-hive-") as home:
        conf = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": f"{home}/warehouse",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home}/metastore;create=true",
            **more,
        }
        with server(**conf) as remote:
            yield remote


class HiveLake(Lake):
    """A table that is partitioned by ``by``, and a reader of it."""

    def __init__(
        self,
        remote: str,
        storage: str = "USING parquet",
        by: str = "day date",
        location: str = "",
        columns: str = "n bigint, note string",
    ) -> None:
        """``location``: makes it an external table."""
        super().__init__(remote, "delta", "")
        self._storage = f"{storage} LOCATION '{location}'" if location else storage
        self._by = by
        self._columns = columns
        self.location = location
        self.table = f"spark_catalog.default.h{next(NAMES)}"

    def create(self, table: str, columns: str = "", partition: str = "") -> str:
        columns = columns or self._columns
        names = ", ".join(each.split()[0] for each in self._by.split(", "))
        if self._storage.startswith("USING"):
            using, _, rest = self._storage.partition(" LOCATION")
            ddl = f"({columns}, {self._by}) {using} PARTITIONED BY ({names}){' LOCATION' + rest if rest else ''}"
        else:
            ddl = f"({columns}) PARTITIONED BY ({self._by}) {self._storage}"
        self.spark.sql(f"CREATE TABLE {table} {ddl} {partition}").collect()
        return table

    def content(self, table: str | None = None) -> list[str]:
        name = table or self.table
        self.spark.sql(f"REFRESH TABLE {name}")
        return sorted(f"{row.day.day} {row.note}" for row in self.spark.table(name).collect())

    def partitions(self, table: str | None = None) -> list[str]:
        return sorted(row.partition for row in self.spark.sql(f"SHOW PARTITIONS {table or self.table}").collect())

    def records(self) -> list[str]:
        return [name for name in self.staged() if "_kept_" in name]

    def staged_only(self) -> list[str]:
        return [name for name in self.staged() if "_kept_" not in name]

    def files(self) -> list[str]:
        """The data files of publications, as Spark sees them."""
        (row,) = [
            r for r in self.spark.sql(f"DESCRIBE TABLE EXTENDED {self.table}").collect() if r.col_name == "Location"
        ][:1]
        found = (
            self.spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(f"{row.data_type}/{AREA}")
        )
        return sorted(each.path for each in found.select("path").collect())

    def keeping(self, run_id: int, day: int, backfill: str | None = None, days: int = KEEP_DAYS) -> Attempt:
        """An attempt whose publication keeps what it replaces."""
        attempt = self.attempt(run_id=run_id, day=day)
        attempt.launch = replace(attempt.launch, keep_replaced_days=days, backfill_id=backfill or f"of run {run_id}")
        return Attempt(attempt.sessions, attempt.launch)

    def published(self, run_id: int, *notes: str, day: int = 1, **more: Any) -> Attempt:
        """A run that has published rows with these notes."""
        attempt = self.keeping(run_id, day, **more)
        attempt.stage(self.table, *notes, day=f"2013-01-{day:02}")
        attempt.publish()
        return attempt

    def undo(self, run_id: int, undoes: int, day: int = 1) -> Attempt:
        """An attempt that has staged what a run replaced."""
        attempt = self.keeping(run_id, day)
        run = replace(attempt.launch.runs[0], restores=undoes)
        attempt = Attempt(attempt.sessions, replace(attempt.launch, runs=(run,)))
        undone = TableOutput(self.table, f"{self.table}__gone", "day", "date", "parquet")
        attempt.staging.tables.restore("restore", attempt.spark, undone)
        attempt.outputs = attempt.staging.seal()
        return attempt


class Killed(BaseException):
    """Ends a publisher, as a kill would."""


@dataclass(frozen=True)
class Mortal:
    """A publisher's session that dies before its ``at``-th change of a catalog: no statement after it is executed."""

    real: Any
    at: int
    statements: list[str]

    def sql(self, statement: str) -> Any:
        if statement.startswith(("ALTER", "CREATE", "DROP")):
            self.statements.append(statement)
            if len(self.statements) > self.at:
                raise Killed
        return self.real.sql(statement)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def mortal(attempt: Attempt, at: int) -> Mortal:
    """Let an attempt's publisher die before its ``at``-th change."""
    session = Mortal(attempt.sessions.of_publisher, at, [])
    attempt.sessions = Shared(attempt.sessions.spark, session)
    return session
