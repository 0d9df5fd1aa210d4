"""A table, attempts that stage rows for its days, and their publishers."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, cast
from zoneinfo import ZoneInfo

from psycopg.conninfo import conninfo_to_dict

from retrofill.driver.session import Sessions
from retrofill.driver.versions import close_by_stop_only
from retrofill.outputs.staging import Staging
from retrofill.outputs.tables.group import groups_of
from retrofill.outputs.tables.publication import TablePublication, TableResult, Tables, steps
from retrofill.protocol.facts import ErrorInfo
from retrofill.protocol.launch import Launch, Piece
from retrofill.spark import java
from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import Artifact
from tests.support.maven import jar
from tests.support.spark_cluster import connect_process

FORMATS = ("iceberg", "delta")
PATH, JDBC = "delta_path", "iceberg_jdbc"
# For Iceberg's JDBC catalog.
POSTGRES_DRIVER = Artifact("org.postgresql", "postgresql", "42.7.7", "1 MB")
ICEBERG_S3 = Artifact("org.apache.iceberg", "iceberg-aws-bundle", "1.12.0", "69 MB")
# Hadoop's client for S3, of the release that Spark brings, and what it needs of Amazon's.
# Not every server knows the trailing checksums that Amazon's client adds to all uploads by default.
CHECKSUMS = "-Daws.requestChecksumCalculation=when_required -Daws.responseChecksumValidation=when_required"
COLUMNS = "day date, n bigint not null, note string"
# Days added to it begin at midnight there, too.
MIDNIGHT = datetime(2013, 1, 1, tzinfo=ZoneInfo("America/New_York"))
FIRST = MIDNIGHT.astimezone(UTC)
DAY = timedelta(days=1)
NAMES = itertools.count()


def jdbc_catalog(dsn: str) -> dict[str, str]:
    """Settings of an Iceberg catalog in Postgres, without a warehouse."""
    of = conninfo_to_dict(dsn)
    return {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:postgresql://{of['host']}:{of['port']}/{of['dbname']}",
        ".jdbc.user": str(of["user"]),
        ".jdbc.password": str(of.get("password") or ""),
    }


@contextmanager
def server(**more: str) -> Iterator[str]:
    """The address of a Spark Connect server with both formats, whose Iceberg catalog is named ``lake``."""
    close_by_stop_only()
    with tempfile.TemporaryDirectory(prefix="retrofill-tables-") as home:
        conf = {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": f"{home}/lake",
            # A few rows each.
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.log.level": "WARN",
            "spark.jars": ",".join(str(jar(each)) for each in (POSTGRES_DRIVER, ICEBERG_S3)),
            "spark.driver.extraJavaOptions": CHECKSUMS,
            **more,
        }
        settings = Settings(home=Path(home), spark_cores=2, spark_tables=["iceberg", "delta"], spark_conf=conf)
        with connect_process(settings, java.find(settings)) as (remote, _):
            yield remote


@dataclass(frozen=True)
class Shared:
    """Real sessions, which all attempts of a test share: each costs seconds to open."""

    spark: Any
    of_publisher: Any
    shares_server = True

    def publisher(self) -> Any:
        return self.of_publisher

    def lost(self, error: BaseException) -> None:
        """They are not lost: a test fails with the error itself."""

    def end_publications(self, attempts: Iterable[int]) -> None:
        """The session's; nobody else has one."""
        self.of_publisher.interruptAll()


class Attempt:
    """An attempt. ``run``: the first of its runs."""

    def __init__(self, sessions: Shared, launch: Launch) -> None:
        self.launch = launch
        self.run = self.launch.runs[0]
        self.piece = Piece(self.launch.runs)
        self.staging = Staging(self.launch, self.piece)
        self.sessions = sessions
        self.spark = sessions.spark
        self.outputs: Mapping[int, tuple[str, ...]] = {}
        self.permitted = True
        self.ask: Callable[[], bool] = lambda: self.permitted

    def rows(self, *values: tuple[str | None, int | None, str | None]) -> Any:
        return self.spark.createDataFrame(list(values), "day string, n bigint, note string").selectExpr(
            "cast(day as date) day", "n", "note"
        )

    def stage(self, table: str, *notes: str, day: str = "2013-01-01") -> None:
        """Stage rows of a day with these notes, and seal them."""
        self.staging.tables.stage(
            "a", self.spark, self.rows(*((day, n, note) for n, note in enumerate(notes))), table, "day"
        )
        self.outputs = self.staging.seal()

    def publications(self, attempt_id: int | None = None) -> Iterator[TablePublication]:
        """Those of all tables, in order. ``attempt_id``: that staged them, unless it was this one."""
        runs = [replace(run, outputs=tuple(self.outputs[run.id])) for run in self.launch.runs]
        for group in groups_of(self.launch, attempt_id or self.launch.attempt_id, runs):
            wanted = [run.id for run in runs]
            yield TablePublication(group, lambda _: self.ask(), wanted, keep_days=self.launch.keep_replaced_days)

    def publish(self, attempt_id: int | None = None) -> list[str]:
        """Publish everything, as a driver does. Returns the tables' versions since then, by run."""
        tables = Tables(self.launch, cast(Sessions, self.sessions), lambda _: self.ask(), _fail)
        versions = []
        for each in self.publications(attempt_id):
            tables.publish(each, again=any(run.publication for run in each.whole.runs))
            versions += [_version(each.results[run.id]) for run in each.whole.runs]
        return versions


class Publisher:
    """A publisher that can be stopped before each of its changes."""

    def __init__(self, attempt: Attempt, of: Attempt | None = None) -> None:
        """``of``: the attempt that staged what this one publishes."""
        if of is not None:
            attempt.outputs = of.outputs
        self.attempt = attempt
        self.publication = next(attempt.publications((of or attempt).launch.attempt_id))
        self._steps = steps(self.publication, attempt.sessions.publisher())
        self.ended = False
        self.version: str | None = None
        self.error: Exception | None = None

    def step(self) -> str | None:
        """Continue to the next pause. Returns its name, or ``None`` at the end."""
        try:
            return next(self._steps)
        except StopIteration:
            self.ended = True
            try:
                (self.version,) = {_version(each) for each in self.publication.results.values()}
            except PublicationFailed as e:
                self.error = e
        except Exception as e:  # noqa: BLE001 - whatever Spark raises
            self.ended, self.error = True, e
        return None

    def until(self, name: str) -> Publisher:
        """Continue until it is about to do this."""
        while (step := self.step()) != name:
            assert step is not None, f"it ended before {name}: {self.error}"
        return self

    def finish(self) -> Exception | None:
        """Continue to the end. Returns the error."""
        while not self.ended:
            self.step()
        return self.error


class Lake:
    """A table in a real format, and a reader of it."""

    def __init__(self, remote: str, format: str, folder: Path | str, catalog: Mapping[str, str] | None = None) -> None:
        """``catalog``: the settings of a catalog ``pg``. ``folder``: of tables that are named by their paths."""
        self._remote = remote
        self._catalog = {f"spark.sql.catalog.pg{name}": value for name, value in (catalog or {}).items()}
        self.format = "iceberg" if format in ("iceberg", JDBC) else "delta"
        names = {"iceberg": "lake.db.t", JDBC: "pg.db.t", "delta": "spark_catalog.default.t", PATH: f"{folder}/t"}
        self.table = f"{names[format]}{next(NAMES)}"
        if format == PATH:
            self.table = f"delta.`{self.table}`"
        self._ids = itertools.count(1)

    def __enter__(self) -> Self:
        from pyspark.sql.connect.session import SparkSession

        with ExitStack() as opened:
            self.spark, publisher = (SparkSession.builder.remote(self._remote).create() for _ in range(2))
            self._sessions = Shared(self.spark, publisher)
            for session in (self.spark, publisher):
                # One that is left open would wait at the interpreter's end for the server, which is gone by then.
                opened.callback(session.stop)
                for name, value in self._catalog.items():
                    session.conf.set(name, value)
            if self.format == "iceberg":
                self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.table.rpartition('.')[0]}").collect()
            self.create(self.table)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._opened:
            self.spark.sql(f"DROP TABLE {self.table}").collect()

    @property
    def sessions(self) -> Shared:
        return self._sessions

    def create(self, table: str, columns: str = COLUMNS, partition: str = "PARTITIONED BY (day)") -> str:
        self.spark.sql(f"CREATE TABLE {table} ({columns}) USING {self.format} {partition}").collect()
        return table

    def attempt(
        self, run_id: int = 1, attempt_id: int | None = None, *, day: int = 1, number: int = 0, runs: int = 1
    ) -> Attempt:
        """An attempt at runs of consecutive days. Ids of attempts increase."""
        return Attempt(self._sessions, launch(range(run_id, run_id + runs), attempt_id or next(self._ids), day, number))

    def content(self, table: str | None = None) -> list[str]:
        """The rows that a reader sees, as ``DAY NOTE``."""
        name = table or self.table
        if self.format == "iceberg":
            self.spark.sql(f"REFRESH TABLE {name}").collect()
        return sorted(f"{row.day.day} {row.note}" for row in self.spark.table(name).collect())

    def commits(self) -> int:
        """How many commits of Retrofill's the table's own history has."""
        if self.format == "iceberg":
            self.spark.sql(f"REFRESH TABLE {self.table}").collect()
            return int(
                self.spark.table(f"{self.table}.snapshots").where("summary['retrofill.runs'] IS NOT NULL").count()
            )
        history = self.spark.sql(f"DESCRIBE HISTORY {self.table}")
        return int(history.where("userMetadata LIKE '%\"retrofill\"%'").count())

    def version(self) -> str:
        """The table's version, as it tells itself."""
        if self.format == "delta":
            return str(self.spark.sql(f"DESCRIBE HISTORY {self.table} LIMIT 1").collect()[0].version)
        self.spark.sql(f"REFRESH TABLE {self.table}").collect()
        return str(self.spark.table(f"{self.table}.refs").where("name = 'main'").collect()[0].snapshot_id)

    def staged(self) -> list[str]:
        """Staged tables that are still there."""
        if "`" in self.table:
            path = Path(self.table.split("`")[1])
            return sorted(each.name for each in path.parent.glob(f"{path.name}__*"))
        namespace, _, name = self.table.rpartition(".")
        found = self.spark.sql(f"SHOW TABLES IN {namespace} LIKE '{name}__*'").collect()
        return sorted(row.tableName for row in found)


def published_once(lake: Lake, *notes: str) -> Iterator[str]:
    """A day is published once, by the second of its publishers, and by a later run; the first one changes nothing.

    Checks the table, and yields what has just been done. ``notes``: of the later run's rows.
    """
    first = lake.attempt(run_id=1)
    first.stage(lake.table, "first")
    assert (lake.content(), len(lake.staged())) == ([], 1)
    yield "staged"
    former = Publisher(first).until("table:commit")
    assert Publisher(lake.attempt(run_id=1, attempt_id=50, number=1), of=first).finish() is None
    assert (lake.content(), lake.commits(), lake.staged()) == (["1 first"], 1, [])
    yield "published"
    later = lake.attempt(run_id=2, attempt_id=60)
    later.stage(lake.table, *notes)
    later.publish()
    first.permitted = False
    assert former.finish() is not None
    assert (lake.content(), lake.commits()) == ([f"1 {note}" for note in notes], 2)
    yield "replaced"


def launch(run_ids: range, attempt_id: int, day: int, number: int) -> Launch:
    """As a host sends it: daily runs in New York."""
    start = MIDNIGHT + (day - 1) * DAY
    runs = [
        {
            "id": id,
            "attempt": 1,
            "interval_start": (start + n * DAY).isoformat(),
            "interval_end": (start + (n + 1) * DAY).isoformat(),
            "publication": number,
        }
        for n, id in enumerate(run_ids)
    ]
    return Launch.of(
        {
            "backfill_id": "b",
            "attempt_id": attempt_id,
            "mode": "range" if len(runs) > 1 else "each",
            "runs": runs,
            "pipeline": {
                "name": "p",
                "schedule": "@daily",
                "timezone": "America/New_York",
                "tasks": [{"name": "a"}],
                "code": {"file": "/p.py", "attribute": "p"},
            },
            "lease_seconds": 60.0,
            "installation": "test",
        }
    )


class PublicationFailed(Exception):
    """Why a run was not published. ``kind``: the name of the exception's class."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.kind = error.type


def _version(result: TableResult) -> str:
    if isinstance(result, ErrorInfo):
        raise PublicationFailed(result)
    assert isinstance(result, str), result
    return result


def _fail(why: str, _: bool) -> None:
    raise AssertionError(why)
