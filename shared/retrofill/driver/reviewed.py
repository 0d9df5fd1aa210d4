"""What a review compares with: remembered when output is staged, and looked at again before it is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Mapping

from retrofill.driver.base import Base, BaseChanged, base_of_folder
from retrofill.driver.kept import key_of
from retrofill.driver.launch import Launch, LaunchedRun, Piece
from retrofill.driver.publication import Publication, refuse_changed_base
from retrofill.driver.tables.base import ReviewedRows, bases_of_table
from retrofill.driver.tables.formats import FORMATS
from retrofill.driver.tables.output import TableOutput
from retrofill.driver.tables.publication import TablePublication, Tables


def remember(
    launch: Launch, piece: Piece, outputs: Mapping[int, tuple[str, ...]], session: Callable[[], Any]
) -> dict[int, tuple[str, ...]]:
    """The present state of the places of staged outputs, by run. One Spark job for each table. Raises what that does."""
    of_tables: dict[str, dict[int, Base]] = {}

    def base_of(output: str, run: LaunchedRun) -> Base:
        table = TableOutput.of(output)
        if table is None:
            return base_of_folder(Path(output))
        if table.table not in of_tables:
            found = bases_of_table(session(), table, launch, piece)
            of_tables[table.table] = {each.id: base for each, base in zip(piece.runs, found)}
        return of_tables[table.table][run.id]

    return {run.id: tuple(str(base_of(each, run)) for each in outputs.get(run.id, ())) for run in piece.runs}


class ReviewedRun:
    """The outputs of an accepted run beside the state of their places that a review has approved, if one has."""

    def __init__(self, launch: Launch, run: LaunchedRun, accepted_attempt: int, tables: Tables) -> None:
        self._launch = launch
        self._run = run
        self._attempt = accepted_attempt
        self._tables = tables
        bases = run.bases or (None,) * len(run.outputs)
        self.bases = [None if text is None else Base.of(text) for text in bases]

    def rows(self, number: int) -> ReviewedRows | None:
        """The base of the output of this number, which is a table."""
        base, table = self.bases[number], TableOutput.of(self._run.outputs[number])
        return None if base is None or table is None else ReviewedRows(table, self._launch, self._run, base)

    def publication(self, number: int) -> Publication:
        """The publication of the output of this number, which is a directory."""
        key, days = key_of(self._launch.installation, self._run.id), self._launch.keep_replaced_days
        more = (self.bases[number], self._run.over_changes)
        return Publication(Path(self._run.outputs[number]), key, self._attempt, self._run.publication, days, *more)

    def refuse_changed(self) -> None:
        """Raise ``BaseChanged`` if one of several outputs would not be published: then none is."""
        if len(self._run.outputs) > 1:
            for number in range(len(self._run.outputs)):
                self._refuse_changed(number)

    def present(self, by: BaseChanged) -> tuple[list[str], list[str]]:
        """The outputs whose places were changed, and the present state of all places. ``by``: what one of them raised."""
        outputs = self._run.outputs
        changed = [each for n, each in enumerate(outputs) if each == by.output or self._is_changed(n)]
        return changed, [str(self._base_now(each)) for each in outputs]

    def _base_now(self, output: str) -> Base:
        table = TableOutput.of(output)
        if table is None:
            return base_of_folder(Path(output))

        def look(_: int) -> Base:
            assert table is not None
            return bases_of_table(self._tables.session(), table, self._launch, Piece((self._run,)))[0]

        return self._tables.retried(look, table.table)

    def _is_changed(self, number: int) -> bool:
        try:
            self._refuse_changed(number)
        except BaseChanged:
            return True
        return False

    def _refuse_changed(self, number: int) -> None:
        rows = self.rows(number)
        if rows is None:
            refuse_changed_base(self.publication(number))
            return
        output = TableOutput.of(self._run.outputs[number])
        assert output is not None
        marker = TablePublication(output, self._launch, self._run, self._attempt, lambda: True).marker

        def compare(_: int) -> None:
            session = self._tables.session()
            rows.refuse_changed(session, FORMATS[output.format](session, output.table), marker)

        self._tables.retried(compare, output.table)
