"""Remove what ended long ago: page by page, table by table, each batch a short transaction of its own.

A purge that ends anywhere has deleted whole batches, each exported before, and the next one goes on. What may be deleted
is said in ``retrofill.store.purge``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection, Engine

from retrofill.admin.export import Draft, Export
from retrofill.bus.crash import crash_point
from retrofill.store import purge as store
from retrofill.store.clock import database_now

PAGE_BACKFILLS = 500
BATCH_ROWS = 5_000
# So often rows are looked at again that somebody changed while they were exported; then they are left to the next purge.
TRIES = 5


class CannotPurge(Exception):
    """This role may not, or another purge is at it."""


@dataclass
class Purged:
    """How far a purge is, or what a dry run found."""

    cutoff: datetime
    backfills: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    # Backfills that had to wait, by the reason.
    held: Counter[str] = field(default_factory=Counter)
    files: int = 0


@dataclass(frozen=True)
class Purge:
    """One purge. ``told`` is called with how far it is after every batch; a dry run only counts."""

    engine: Engine
    older_than: timedelta
    export: Path | None = None
    dry_run: bool = False
    fields: Callable[[Purged], None] = lambda _: None
    page_backfills: int = PAGE_BACKFILLS
    batch_rows: int = BATCH_ROWS

    def run(self) -> Purged:
        """All pages, one after the other. Raises ``CannotPurge`` and ``CannotExport``."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            if self.dry_run:
                return self._all_pages(conn, None)
            if not store.may_delete(conn):
                raise CannotPurge(
                    "this role of Postgres may not delete: RETROFILL_POSTGRES_DSN must be the owner's, as for 'retrofill init'"
                )
            if not store.begin(conn):
                raise CannotPurge("another purge is at work in this database: wait for its end")
            try:
                named = f"{database_now(conn):%Y%m%dT%H%M%S%fZ}"
                return self._all_pages(conn, None if self.export is None else Export(self.export, named))
            finally:
                store.end(conn)

    def _all_pages(self, conn: Connection, export: Export | None) -> Purged:
        sofar = Purged(store.cutoff(conn, self.older_than))
        if not self.dry_run:
            store.look_again(conn)
        after = store.Place()
        while page := store.next_page(conn, sofar.cutoff, after, self.page_backfills, again=self.dry_run):
            self._page(page, sofar, export)
            after = page.last
        return sofar

    def _page(self, found: store.Page, sofar: Purged, export: Export | None) -> None:
        page = self._settled(found, sofar)
        sofar.backfills += len(page.ids)
        for kind in store.KINDS:
            if self.dry_run:
                with self.engine.connect() as conn:
                    sofar.rows[kind.table.name] += store.count(conn, kind, page)
            else:
                while gone := self._batch(kind, page, sofar, export):
                    sofar.rows[kind.table.name] += gone
                    self.fields(sofar)
        if not self.dry_run:
            self._done(page, sofar)
        self.fields(sofar)

    def _done(self, page: store.Page, sofar: Purged) -> None:
        """What is left of the page stays until a later run takes its place: the next purge passes over it."""
        with self.engine.begin() as conn:
            # Whoever had a row locked, or changed it, leaves it to the next purge.
            if not any(store.count(conn, kind, page) for kind in store.KINDS):
                store.done(conn, page, sofar.cutoff + self.older_than)

    def _settled(self, page: store.Page, sofar: Purged) -> store.Page:
        """The page without the backfills that have to wait."""
        with self.engine.connect() as conn:
            held = store.held(conn, page.ids)
        sofar.held.update(held.values())
        return store.Page([id for id in page.ids if id not in held], page.last, page.averages)

    def _batch(self, kind: store.Kind, page: store.Page, sofar: Purged, export: Export | None) -> int:
        """Delete the next rows of a kind; how many, 0 where there are no more."""
        if export is None:
            return self._delete(kind, page, None, None) or 0
        for _ in range(TRIES):
            with self.engine.begin() as conn:
                rows = store.lock(conn, kind, page, self.batch_rows)
            if not rows.values:
                return 0
            # Written while nothing is locked, however slow the folder is; compared again before the rows go.
            draft = export.write(kind.table.name, kind.columns, rows.values)
            try:
                gone = self._delete(kind, page, rows, draft)
            finally:
                draft.drop()
            if gone is not None:
                sofar.files += 1
                return gone
        return 0

    def _delete(
        self, kind: store.Kind, page: store.Page, exported: store.Rows | None, draft: Draft | None
    ) -> int | None:
        """One transaction; ``None`` where the rows are not those that were exported any more."""
        with self.engine.begin() as conn:
            rows = store.lock(conn, kind, page, self.batch_rows)
            if exported is not None and rows.values != exported.values:
                return None
            gone = store.delete(conn, kind, rows)
            assert gone == len(rows.values), "locked rows cannot go"
            crash_point("purge:deleted")
            if draft is not None:
                draft.keep()
            crash_point("purge:exported")
        crash_point("purge:committed")
        return gone
