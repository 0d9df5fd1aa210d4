"""Figures of the rows of an output: how many there are, and per column nulls, sum, minimum and maximum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from retrofill.outputs.tables.key import Key
from retrofill.protocol.launch import Interval
from retrofill.protocol.table_output import TableOutput, quoted

# By the name of a directory's data files.
FORMATS = {".parquet": "parquet", ".orc": "orc", ".json": "json", ".csv": "csv"}
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_ORDERED = (*_NUMBERS, "string", "varchar", "char", "date", "timestamp", "timestamp_ntz", "boolean")


@dataclass(frozen=True)
class Column:
    """``total``: of numbers. ``least`` and ``greatest``: as Spark writes them; ``None`` if nothing is ordered."""

    nulls: int
    total: float | None = None
    least: str | None = None
    greatest: str | None = None


@dataclass(frozen=True)
class Summary:
    """``rows`` is ``None`` for files in a format that Spark does not read. ``bytes``: of files."""

    rows: int | None
    columns: Mapping[str, Column]
    bytes: int | None = None


def of_table(session: Any, output: TableOutput, interval: Interval, *, staged: bool) -> Summary:
    """Of the interval's rows that are staged for a table, or in it."""
    return _of(rows_of_table(session, output, interval, staged=staged))


def rows_of_table(session: Any, output: TableOutput, interval: Interval, *, staged: bool) -> Any:
    """Those rows, as a DataFrame."""
    name = output.staged if staged else output.table
    if output.format != "delta":
        # The server may know an older state.
        session.sql(f"REFRESH TABLE {name}")
    return session.table(name).where(Key.of(output).condition([interval])).drop(*output.filled)


def of_folder(session: Any, folder: Path) -> Summary | None:
    """Of a directory's files; ``None`` if there is none. Spark must see it under the same path. Raises ``OSError``."""
    if not folder.is_dir():
        return None
    files = _data_files(folder)
    size = sum(each.stat().st_size for each in files)
    rows = rows_of_folder(session, folder)
    if rows is None:
        return Summary(0 if not files else None, {}, size)
    found = _of(rows)
    return Summary(found.rows, found.columns, size)


def rows_of_folder(session: Any, folder: Path) -> Any:
    """The rows of a directory's files, as a DataFrame; ``None`` if there are none, or not of one format that Spark reads."""
    formats = {FORMATS.get(_suffix(each)) for each in _data_files(folder)}
    if len(formats) != 1 or None in formats:
        return None
    (format,) = formats
    return session.read.format(format).option("header", "true").load(str(folder))


def _data_files(folder: Path) -> list[Path]:
    return [each for each in sorted(folder.rglob("*")) if _is_data(each.relative_to(folder)) and each.is_file()]


def _is_data(path: Path) -> bool:
    """Whether Spark reads the file: not if a part of its path is hidden."""
    return not any(part.startswith((".", "_")) for part in path.parts)


def _suffix(path: Path) -> str:
    """The suffix, without that of a compression."""
    return next((each for each in reversed(path.suffixes) if each in FORMATS), path.suffix)


def _of(rows: Any) -> Summary:
    kinds = [(field.name, field.dataType.simpleString().partition("(")[0]) for field in rows.schema.fields]
    wanted = ["count(1) AS rows"]
    for number, (name, kind) in enumerate(kinds):
        column = quoted(name)
        wanted.append(f"count_if({column} IS NULL) AS nulls{number}")
        if kind in _NUMBERS:
            wanted.append(f"cast(sum({column}) AS double) AS total{number}")
        if kind in _ORDERED:
            wanted += [f"cast({which}({column}) AS string) AS {which}{number}" for which in ("min", "max")]
    (found,) = (row.asDict() for row in rows.selectExpr(*wanted).collect())
    parts = ("nulls", "total", "min", "max")
    columns = {
        name: Column(*(found.get(f"{part}{number}") for part in parts)) for number, (name, _) in enumerate(kinds)
    }
    return Summary(found["rows"], columns)
