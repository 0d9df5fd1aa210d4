"""Tables with keys of all kinds: rows of moments in and around an interval, and rows that are no interval's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from retrofill.protocol.launch import Launch
from retrofill.sdk.texts import Declared
from tests.support.lake import Attempt, Lake

HOUR = timedelta(hours=1)
NAMES = itertools.count()
Row = tuple[str, ...]


@dataclass(frozen=True)
class Keyed:
    """A key as it is declared. ``columns``: type and strftime's format of each. ``others``: rows of nobody, in SQL."""

    declared: Declared
    columns: Mapping[str, tuple[str, str]]
    others: Sequence[Row] = ()
    zone: str = ""

    def literals(self, moment: datetime, zone: str) -> Row:
        """What a row of a moment has, as plain Python says it."""
        there = moment.astimezone(ZoneInfo(self.zone or zone))
        return tuple(_literal(type, format, there) for type, format in self.columns.values())


@dataclass(frozen=True)
class Span:
    """An interval of a pipeline in a time zone; moments in UTC."""

    zone: str
    start: str
    end: str

    @property
    def ends(self) -> tuple[datetime, datetime]:
        return datetime.fromisoformat(self.start + "Z"), datetime.fromisoformat(self.end + "Z")

    def moments(self) -> Iterator[datetime]:
        """In the interval and around it: next to its ends, within it, and a year away."""
        start, end = self.ends
        near = [HOUR * n / 2 for n in (-49, -3, -2, -1, 0, 1, 2, 3, 49)]
        inside = [start + (end - start) * n / 4 for n in range(1, 4)]
        far = [start + timedelta(days=n) for n in (-366, -365, 365, 366)]
        yield from sorted({*(start + each for each in near), *(end + each for each in near), *inside, *far})

    def has(self, moment: datetime) -> bool:
        start, end = self.ends
        return start <= moment < end

    def is_alone(self, key: Keyed) -> bool:
        """Whether no quarter of an hour near its ends, but outside, has the key of one inside."""
        start, end = self.ends
        quarters = [each + HOUR * n / 4 for each in (start, end) for n in range(-104, 104)]
        inside = {key.literals(each, self.zone) for each in quarters if self.has(each)}
        return inside.isdisjoint(key.literals(each, self.zone) for each in quarters if not self.has(each))


@dataclass
class Table:
    """A table with a key in a lake, and what a reader must find in it."""

    lake: Lake
    key: Keyed
    span: Span
    partition: str
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"{self.lake.table}_{next(NAMES)}"
        columns = ", ".join(f"{name} {type}" for name, (type, _) in self.key.columns.items())
        self.lake.create(self.name, f"{columns}, n bigint", self.partition)
        self.rows = {n: self.key.literals(each, self.span.zone) for n, each in enumerate(self.span.moments())}
        self.outside = {n for n, each in enumerate(self.span.moments()) if not self.span.has(each)}
        for n, other in enumerate(self.key.others, 1000):
            self.rows[n] = other
            self.outside.add(n)
        self.zones("UTC")
        values = ", ".join(f"({', '.join(row)}, {n}L)" for n, row in self.rows.items())
        self.lake.spark.sql(f"INSERT INTO {self.name} VALUES {values}").collect()

    def zones(self, zone: str) -> None:
        """Set that of all sessions."""
        sessions = self.lake.sessions
        for session in (sessions.spark, sessions.of_publisher):
            session.conf.set("spark.sql.session.timeZone", zone)

    def attempt(self, run_id: int, restores: int | None = None) -> Attempt:
        run = {"id": run_id, "attempt": 1, "interval_start": self.span.start + "Z", "interval_end": self.span.end + "Z"}
        launch = Launch.of(
            {
                "backfill_id": f"b{run_id}",
                "attempt_id": run_id,
                "mode": "each",
                "runs": [{**run, **({"restores": restores} if restores else {})}],
                "pipeline": {
                    "name": "p",
                    "timezone": self.span.zone,
                    "tasks": [{"name": "a"}],
                    "code": {"file": "/p.py", "attribute": "p"},
                },
                "lease_seconds": 60.0,
                "installation": self.name,
                "keep_replaced_days": 1 if restores else 0,
            }
        )
        return Attempt(self.lake.sessions, launch)

    def stage(self, attempt: Attempt, rows: Mapping[int, Row]) -> None:
        """Rows by their numbers."""
        columns = {**{name: type for name, (type, _) in self.key.columns.items()}, "n": "bigint"}
        values = ", ".join(f"({', '.join(row)}, {n}L)" for n, row in rows.items())
        nothing = f"SELECT {', '.join(f'CAST(null AS {type})' for type in columns.values())} WHERE false"
        given = f"VALUES {values}" if values else nothing
        made = self.lake.spark.sql(f"SELECT * FROM ({given}) AS t({', '.join(columns)})")
        attempt.staging.tables.stage("a", self.lake.spark, made, self.name, self.key.declared, self.key.zone)
        attempt.outputs = attempt.staging.seal()

    def content(self) -> set[tuple[Any, ...]]:
        """Numbers and keys of all rows, moments in UTC."""
        self.zones("UTC")
        if self.lake.format == "iceberg":
            self.lake.spark.sql(f"REFRESH TABLE {self.name}").collect()
        keys = ", ".join(f"CAST({name} AS string)" for name in self.key.columns)
        return {tuple(row) for row in self.lake.spark.sql(f"SELECT n, {keys} FROM {self.name}").collect()}

    def drop(self) -> None:
        self.lake.spark.sql(f"DROP TABLE {self.name}").collect()


def _literal(type: str, format: str, there: datetime) -> str:
    if type == "timestamp":
        return f"TIMESTAMP '{there.astimezone(UTC).replace(tzinfo=None)} UTC'"
    if type == "timestamp_ntz":
        return f"TIMESTAMP_NTZ '{there.replace(tzinfo=None)}'"
    if type == "date":
        return f"DATE '{there.date()}'"
    text = there.strftime(format)
    return f"'{text}'" if type == "string" else f"CAST({int(text)} AS {type})"
