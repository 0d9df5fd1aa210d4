"""The base of reviewed rows: how many rows of an interval a table had, and the sum of their hashes."""

from __future__ import annotations

from typing import Any

from retrofill.driver.base import Base, BaseChanged
from retrofill.driver.interval import interval_of
from retrofill.driver.kept import NotKept
from retrofill.driver.launch import Launch, LaunchedRun, Piece
from retrofill.driver.tables.formats import FORMATS
from retrofill.driver.tables.interval import condition
from retrofill.driver.tables.marker import Marker
from retrofill.driver.tables.output import TableOutput
from retrofill.driver.tables.protocol import Format
from retrofill.driver.tables.states import as_of, digests, same_rows


def bases_of_table(session: Any, output: TableOutput, launch: Launch, piece: Piece) -> list[Base]:
    """The present state of the rows of each interval, by one Spark job for all."""
    version = FORMATS[output.format](session, output.table).version()
    conditions = [_rows(output, launch, run) for run in piece.runs]
    found = digests(session.table(output.table), conditions, _rows(output, launch, piece))
    return [Base(version, content) for content in found]


class ReviewedRows:
    """The approved state of the rows that an output replaces, beside the present one."""

    def __init__(self, output: TableOutput, launch: Launch, run: LaunchedRun, base: Base) -> None:
        self._output = output
        self._condition = _rows(output, launch, run)
        self._base = base
        # The version that was compared last.
        self._compared = base.version

    def refuse_changed(self, session: Any, table: Format, marker: Marker) -> None:
        """Raise ``BaseChanged`` if the rows are others now, unless the run of the marker is published already."""
        self._compared = table.version()
        if self.same(session, self._compared) or table.published(marker) is not None:
            return
        raise BaseChanged(f"the interval in {self._output.table}", str(self._output))

    def same(self, session: Any, version: str) -> bool:
        """Whether the table, which is at this version, has the same rows as in the review."""
        return version == self._base.version or self._same_rows(session, session.table(self._output.table))

    def replaced_change(self, session: Any, table: Format, published: str) -> bool:
        """Whether the commit that is this version of the table replaced other rows than those that were compared."""
        before = table.predecessor(published)
        if before is None or before == table.number(self._compared):
            return False
        return not self._same_rows(session, as_of(session, self._output.table, int(before)))

    def _same_rows(self, session: Any, present: Any) -> bool:
        (content,) = digests(present, [self._condition], self._condition)
        if content == self._base.content:
            return True
        try:
            before = _state(session, FORMATS[self._output.format](session, self._output.table), self._base.version)
        except NotKept:
            return False
        # Somebody may have added a column: then the same rows have other hashes.
        return before.schema != present.schema and same_rows(before, present, self._condition)


def _state(session: Any, table: Format, version: str) -> Any:
    """The whole table as of a version. Raises ``NotKept``."""
    number = table.number(version)
    return as_of(session, table.table, int(number)) if number else session.table(table.table).where("false")


def _rows(output: TableOutput, launch: Launch, run: LaunchedRun | Piece) -> str:
    return condition(output.column, output.type, interval_of(launch, run))
