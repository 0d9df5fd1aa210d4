"""Deletes ended backfills: page by page, table by table, each batch in its own short transaction.

A purge that stops anywhere has deleted whole batches, each exported first as Parquet files, and the next purge
continues. ``retrofill_core.store.purge`` defines what may be deleted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Connection, DateTime, Double, Engine, Integer

from retrofill.outputs.kept import AREA, KEPT, forget_old, sweep
from retrofill.system.crash import crash_point
from retrofill.system.files import sync
from retrofill_core.store import purge as store
from retrofill_core.store.sql import database_now

PAGE_BACKFILLS = 500
BATCH_ROWS = 5_000
# Attempts to export rows that change meanwhile; after that they are left to the next purge.
TRIES = 5


class CannotPurge(Exception):
    """The role may not delete, or another purge is running."""


@dataclass
class Purged:
    """Progress of a purge, or the result of a dry run."""

    cutoff: datetime
    backfills: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    # Backfills that could not be purged yet, by reason.
    held: Counter[str] = field(default_factory=Counter)
    files: int = 0


@dataclass(frozen=True)
class Purge:
    """One purge. ``on_progress`` is called after every batch. A dry run only counts."""

    engine: Engine
    older_than: timedelta
    export: Path | None = None
    dry_run: bool = False
    on_progress: Callable[[Purged], None] = lambda _: None
    page_backfills: int = PAGE_BACKFILLS
    batch_rows: int = BATCH_ROWS

    def run(self) -> Purged:
        """Purge all pages. Raises ``CannotPurge`` and ``CannotExport``."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            if self.dry_run:
                return self._all_pages(conn, None)
            if not store.may_delete(conn):
                raise CannotPurge(
                    "this Postgres role may not delete: set RETROFILL_POSTGRES_DSN to the owner's, as for 'retrofill init'"
                )
            if not store.begin(conn):
                raise CannotPurge("another purge is running in this database: wait until it ends")
            try:
                named = f"{database_now(conn):%Y%m%dT%H%M%S%fZ}"
                return self._all_pages(conn, None if self.export is None else Export(self.export, named))
            finally:
                store.end(conn)

    def _all_pages(self, conn: Connection, export: Export | None) -> Purged:
        sofar = Purged(store.cutoff(conn, self.older_than))
        if not self.dry_run:
            store.reopen(conn)
        after = store.PurgePosition()
        while page := store.next_page(conn, sofar.cutoff, after, self.page_backfills, again=self.dry_run):
            self._page(page, sofar, export)
            after = page.last
        return sofar

    def _page(self, found: store.Page, sofar: Purged, export: Export | None) -> None:
        page = self._settled(found, sofar)
        sofar.backfills += len(page.ids)
        if not self.dry_run:
            self._forget_replaced(page, sofar)
        for kind in store.KINDS:
            if self.dry_run:
                with self.engine.connect() as conn:
                    sofar.rows[kind.table.name] += store.count(conn, kind, page)
            else:
                while deleted := self._batch(kind, page, sofar, export):
                    sofar.rows[kind.table.name] += deleted
                    self.on_progress(sofar)
        if not self.dry_run:
            self._done(page, sofar)
        self.on_progress(sofar)

    def _forget_replaced(self, page: store.Page, sofar: Purged) -> None:
        """Delete what the page's runs replaced, where this machine sees it and if its days are over.

        How long it is kept was written beside it by the publications, which delete it too, in the
        directories that they still use.
        """
        with self.engine.connect() as conn:
            folders = store.folders(conn, page)
        for area in (Path(folder) / AREA for folder in folders):
            try:
                if (area / KEPT).is_dir():
                    forget_old(area)
                    sweep(area)
            except OSError as e:
                sofar.held[f"replaced output is not deleted: {e.strerror}"] += 1

    def _done(self, page: store.Page, sofar: Purged) -> None:
        """Mark the page as purged: what is left stays until later runs replace it."""
        with self.engine.begin() as conn:
            # Rows that were locked or changed meanwhile are left to the next purge.
            if not any(store.count(conn, kind, page) for kind in store.KINDS):
                store.mark_purged(conn, page, sofar.cutoff + self.older_than)

    def _settled(self, page: store.Page, sofar: Purged) -> store.Page:
        """The page without the backfills that cannot be purged yet."""
        with self.engine.connect() as conn:
            held = store.held(conn, page.ids)
        sofar.held.update(held.values())
        return store.Page([id for id in page.ids if id not in held], page.last, page.averages)

    def _batch(self, kind: store.PurgedRows, page: store.Page, sofar: Purged, export: Export | None) -> int:
        """Delete the next rows of a kind; returns their number, 0 if none are left."""
        if export is None:
            return self._delete(kind, page, None, None) or 0
        for _ in range(TRIES):
            with self.engine.begin() as conn:
                rows = store.lock(conn, kind, page, self.batch_rows)
            if not rows.values:
                return 0
            # Written without locks, as the folder may be slow; compared again before the rows are
            # deleted.
            draft = export.write(kind.table.name, kind.columns, rows.values)
            try:
                deleted = self._delete(kind, page, rows, draft)
            finally:
                draft.drop()
            if deleted is not None:
                sofar.files += 1
                return deleted
        return 0

    def _delete(
        self, kind: store.PurgedRows, page: store.Page, exported: store.Rows | None, draft: Draft | None
    ) -> int | None:
        """Delete a batch in one transaction; ``None`` if the rows differ from those exported."""
        with self.engine.begin() as conn:
            rows = store.lock(conn, kind, page, self.batch_rows)
            if exported is not None and rows.values != exported.values:
                return None
            deleted = store.delete(conn, kind, rows)
            assert deleted == len(rows.values), "locked rows cannot disappear"
            crash_point("purge:deleted")
            if draft is not None:
                draft.keep()
            crash_point("purge:exported")
        crash_point("purge:committed")
        return deleted


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
            _write_parquet(hidden, columns, rows)
        except OSError as e:
            raise CannotExport(f"{path} cannot be written: {e.strerror or e}") from e
        return Draft(path, hidden)


def _write_parquet(path: Path, columns: Sequence[Column[Any]], rows: Sequence[tuple[Any, ...]]) -> None:
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
