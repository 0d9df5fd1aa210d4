"""Table rows as Parquet files. A file gets its name once it is complete and on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Double, Integer

from retrofill.system.durable import sync


class CannotExport(Exception):
    """PyArrow is not installed, or files cannot be written."""


class Draft:
    """A complete file that does not have its name yet."""

    def __init__(self, path: Path, hidden: Path) -> None:
        self.path = path
        self._hidden = hidden

    def keep(self) -> None:
        """Give the file its name, durably. Raises ``CannotExport``."""
        try:
            self._hidden.rename(self.path)
            sync(self.path.parent)
        except OSError as e:
            raise CannotExport(f"{self.path} cannot be written: {e.strerror}") from e

    def drop(self) -> None:
        """Delete the file unless it was kept."""
        self._hidden.unlink(missing_ok=True)


class Export:
    """The files of one purge: ``FOLDER/TABLE/NAME-00001.parquet``, one data set per table."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises ``CannotExport``."""
        try:
            import pyarrow  # noqa: F401 - needed only for exports
        except ImportError as e:
            raise CannotExport("--export writes Parquet with pyarrow, which is not installed: retrofill[spark]") from e
        self._folder = folder
        self._name = name
        self._files = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".{name}.tmp"
            probe.touch()
            probe.unlink()
        except OSError as e:
            raise CannotExport(f"files cannot be written to {folder}: {e.strerror}") from e

    def write(self, table: str, columns: Sequence[Column[Any]], rows: Sequence[tuple[Any, ...]]) -> Draft:
        """Write rows, read them back and compare. Raises ``CannotExport``."""
        self._files += 1
        path = self._folder / table / f"{self._name}-{self._files:05}.parquet"
        # Readers of a data set skip names that begin with a dot.
        hidden = path.with_name(f".{path.name}.tmp")
        try:
            if not path.parent.exists():
                path.parent.mkdir()
                sync(self._folder)
            _write(hidden, columns, rows)
        except OSError as e:
            raise CannotExport(f"{path} cannot be written: {e.strerror or e}") from e
        return Draft(path, hidden)


def _write(path: Path, columns: Sequence[Column[Any]], rows: Sequence[tuple[Any, ...]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(column.name, _type(column)) for column in columns])
    by_column = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(by_column, schema, strict=True)]
    made = pa.Table.from_arrays(arrays, schema=schema)
    with path.open("wb") as file:
        pq.write_table(made, file)
        file.flush()
        os.fsync(file.fileno())
    if not pq.read_table(path, partitioning=None).equals(made):
        raise OSError("the file reads back differently than written")


def _type(column: Column[Any]) -> Any:
    import pyarrow as pa

    kinds = (
        (BigInteger, pa.int64()),
        (Integer, pa.int32()),
        (Boolean, pa.bool_()),
        (Double, pa.float64()),
        (DateTime, pa.timestamp("us", tz="UTC")),
    )
    return next((made for kind, made in kinds if isinstance(column.type, kind)), pa.string())
