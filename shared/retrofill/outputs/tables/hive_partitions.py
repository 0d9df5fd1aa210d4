"""Partitions of a table in a Hive metastore or in Glue, listed and changed by SQL alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Collection, Iterable, Mapping, Sequence, Tuple
from urllib.parse import unquote

from retrofill.outputs.tables.key import INTEGERS, Key
from retrofill.protocol.launch import Interval
from retrofill.protocol.table_output import identifier

# Columns in lower case, as a metastore has them, and their values as text.
Spec = Tuple[Tuple[str, str], ...]
# Where tables are whose partitions Spark can change.
SESSION_CATALOG = "spark_catalog"
# The value that stands for null.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_NOT_FOUND = "PARTITIONS_NOT_FOUND"
# A statement with more of them takes a metastore long.
_AT_ONCE = 100


@dataclass(frozen=True)
class TableInfo:
    """What a catalog knows of a table. ``partitioned_by``: names and types. ``about``: by Spark's names."""

    partitioned_by: Mapping[str, str]
    about: Mapping[str, str]

    @property
    def provider(self) -> str:
        """The format, in lower case."""
        return self.about.get("Provider", "unknown").lower()

    @property
    def location(self) -> str:
        return self.about.get("Location", "").rstrip("/")


def describe(session: Any, table: str) -> TableInfo:
    """Ask for a table."""
    rows = session.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    begin = _last(rows, "# Detailed Table Information", len(rows))
    # Columns come first, and may have any name.
    columns = _last(rows, "# Partition Information", begin)
    # A heading, the columns, and an empty row.
    partitioned_by = {row.col_name: row.data_type for row in rows[columns + 2 : begin] if row.data_type}
    # The defaults of columns follow, under names that may be those of facts.
    return TableInfo(partitioned_by, {row.col_name: row.data_type for row in reversed(rows[begin:])})


def files_of(session: Any, table: str) -> dict[str, object]:
    """When each file in a table's directory was written, by its name there; hidden ones are left out."""
    from pyspark.errors import AnalysisException

    location = describe(session, table).location
    found = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        rows = found.load(location).select("path", "modificationTime").collect()
    except AnalysisException as e:
        if "PATH_NOT_FOUND" in str(e):
            return {}
        raise
    last = f"/{location.rpartition('/')[2]}/"
    return {row.path.partition(last)[2]: row.modificationTime for row in rows}


def recover(session: Any, table: str) -> None:
    """Have a table list the partitions that somebody has written into its directory."""
    session.sql(f"ALTER TABLE {table} RECOVER PARTITIONS")
    session.sql(f"REFRESH TABLE {table}")


@dataclass(frozen=True)
class Partition:
    """``readers``: how its files are read, and ``of_table``: those of new partitions."""

    location: str
    readers: Sequence[str]
    of_table: Sequence[str]


class Partitions:
    """The partitions of a table."""

    def __init__(self, session: Any, table: str) -> None:
        self._session = session
        self.table = table
        self._types = {name.lower(): type for name, type in describe(session, table).partitioned_by.items()}

    def names(self) -> list[Spec]:
        """All of them."""
        return [_parsed(row.partition) for row in self._session.sql(f"SHOW PARTITIONS {self.table}").collect()]

    def of_intervals(self, key: Key, intervals: Iterable[Interval]) -> list[Spec]:
        """Those with rows of these intervals."""
        wanted = {value for each in intervals for value in key.values(each)}
        return [spec for spec in self.names() if _key_values(key, spec) in wanted]

    def get(self, spec: Spec) -> Partition | None:
        """``None`` if there is none of that name, or none that Spark finds by it."""
        from pyspark.errors import AnalysisException

        try:
            rows = self._session.sql(f"DESCRIBE TABLE EXTENDED {self.table} {self._sql(spec)}").collect()
        except AnalysisException as e:
            if _NOT_FOUND not in str(e):
                raise
            return None
        begin = _last(rows, "# Detailed Partition Information", 0)
        middle = _last(rows, "# Storage Information", len(rows))
        own, of_table = ({row.col_name: row.data_type for row in part} for part in (rows[begin:middle], rows[middle:]))
        return Partition(own["Location"].rstrip("/"), _readers(own), _readers(of_table))

    def set_location(self, spec: Spec, location: str) -> None:
        """Point one at other files."""
        self._session.sql(f"ALTER TABLE {self.table} {self._sql(spec)} SET LOCATION {text(location)}")

    def add(self, partitions: Mapping[Spec, str | None]) -> None:
        """Add those that are not there. Without a location, the metastore makes an empty directory in the table's."""
        parts = [
            self._sql(spec) + (f" LOCATION {text(location)}" if location else "")
            for spec, location in partitions.items()
        ]
        for at in range(0, len(parts), _AT_ONCE):
            self._session.sql(f"ALTER TABLE {self.table} ADD IF NOT EXISTS {' '.join(parts[at : at + _AT_ONCE])}")

    def drop(self, spec: Spec) -> None:
        """Of a managed table, the metastore deletes the files."""
        self._session.sql(f"ALTER TABLE {self.table} DROP IF EXISTS {self._sql(spec)}")

    def _sql(self, spec: Spec) -> str:
        parts = (f"{identifier(name)} = {self._literal(name, value)}" for name, value in spec)
        return f"PARTITION ({', '.join(parts)})"

    def _literal(self, name: str, value: str) -> str:
        if value == _NULL:
            return "null"
        return value if self._types.get(name) in INTEGERS else text(value)


def name_of(spec: Spec) -> str:
    """For people."""
    return "/".join(f"{name}={value}" for name, value in spec)


def text(value: str) -> str:
    """A literal in SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _parsed(name: str) -> Spec:
    pairs = (part.partition("=") for part in name.split("/"))
    return tuple((unquote(column).lower(), unquote(value)) for column, _, value in pairs)


def _key_values(key: Key, spec: Spec) -> tuple[str | int, ...] | None:
    """What the key's columns have in a partition. ``None`` if that is none of their values."""
    values = dict(spec)
    try:
        return tuple(_value(each.type, values[each.name.lower()]) for each in key.columns)
    except ValueError:
        return None


def _value(type: str, name: str) -> str | int:
    """Also of a name that Spark would write in another way. Raises ``ValueError``."""
    if type == "date":
        year, month, day = map(int, name.split("-"))
        return date(year, month, day).isoformat()
    return int(name) if type in INTEGERS else name


def _readers(about: Mapping[str, str]) -> list[str]:
    return [about.get(name, "") for name in ("Serde Library", "InputFormat", "Storage Properties")]


def _last(rows: Collection[Any], name: str, default: int) -> int:
    return max((number for number, row in enumerate(rows) if row.col_name == name), default=default)
