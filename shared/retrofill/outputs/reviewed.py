"""The base of a review: remembered when output is staged, and compared again before it is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Sequence

from retrofill.outputs.base import Base, BaseChanged, base_of_folder
from retrofill.outputs.kept import key_of
from retrofill.outputs.publication import Publication, refuse_changed_base
from retrofill.outputs.tables.changes import ReviewedRows, bases_of_table
from retrofill.outputs.tables.formats import FORMATS
from retrofill.outputs.tables.group import Group, Member, earlier_groups, groups_of
from retrofill.outputs.tables.publication import Tables, versions_in
from retrofill.protocol.launch import Launch, LaunchedRun, Piece
from retrofill.protocol.table_output import TableOutput


def remember(
    launch: Launch, piece: Piece, outputs: Mapping[int, tuple[str, ...]], session: Callable[[], Any]
) -> dict[int, tuple[str, ...]]:
    """The present state of the places of staged outputs, by run. One Spark job for each table. Raises what that does."""
    of_tables: dict[str, dict[int, Base]] = {}

    def base_of(output: str, run: LaunchedRun) -> Base:
        table = TableOutput.of(output)
        if table is None:
            return base_of_folder(Path(output))
        if table.staged not in of_tables:
            group = Group(launch, launch.attempt_id, tuple(Member(each, table) for each in piece.runs))
            found = _bases(group, session())
            of_tables[table.staged] = {each.id: base for each, base in zip(piece.runs, found)}
        return of_tables[table.staged][run.id]

    return {run.id: tuple(str(base_of(each, run)) for each in outputs.get(run.id, ())) for run in piece.runs}


def _bases(group: Group, session: Any) -> list[Base]:
    output = group.output
    return bases_of_table(FORMATS[output.format](session, output.table), group, session)


class Reviewed:
    """The outputs of accepted runs beside the state of their places that a review has approved, if one has."""

    def __init__(self, launch: Launch, attempt: int, accepted: Sequence[LaunchedRun], tables: Tables) -> None:
        """``accepted``: all runs of the attempt that were accepted."""
        self._launch = launch
        self._attempt = attempt
        self._accepted = accepted
        self._tables = tables

    def rows(self, group: Group) -> ReviewedRows:
        """The bases of a group's rows."""
        bases = {each.run.id: _base(each.run, _number(each)) for each in group.members}
        return ReviewedRows({id: base for id, base in bases.items() if base is not None})

    def folder(self, run: LaunchedRun, output: str) -> Publication:
        """The publication of a directory."""
        key, days = key_of(self._launch.installation, run.id), self._launch.keep_replaced_days
        more = (_base(run, run.outputs.index(output)), run.over_changes)
        return Publication(Path(output), key, self._attempt, run.publication, days, *more)

    def changed(self, runs: Sequence[LaunchedRun]) -> dict[int, BaseChanged]:
        """The runs of which a place was changed, by id, other than by a publisher of theirs. Raises ``NotNow``."""
        found: dict[int, BaseChanged] = {}
        tables = {
            (run.id, run.review, table.staged) for run in runs for table in map(TableOutput.of, run.outputs) if table
        }
        # Delta knows a group by all of its runs.
        groups = groups_of(self._launch, self._attempt, self._accepted)
        for group in groups:
            wanted = {id for id, review, staged in tables if (review, staged) == (group.review, group.output.staged)}
            if wanted:
                for id, by in self._compared(group, wanted, earlier_groups(group, groups)).items():
                    found.setdefault(id, by)
        for run in runs:
            for output in filter(_is_folder, run.outputs):
                try:
                    refuse_changed_base(self.folder(run, output))
                except BaseChanged as e:
                    found.setdefault(run.id, e)
        return found

    def present(self, run: LaunchedRun, by: BaseChanged) -> tuple[list[str], list[str]]:
        """The outputs whose places were changed, and the present state of all places. ``by``: why one was refused.

        Raises ``NotNow``.
        """
        changed = [each for each in run.outputs if each == by.output or self._is_changed(run, each)]
        return changed, [str(self._base_now(run, each)) for each in run.outputs]

    def _is_changed(self, run: LaunchedRun, output: str) -> bool:
        base = _base(run, run.outputs.index(output))
        return base is not None and bool(self.changed([_only(run, output)]))

    def _base_now(self, run: LaunchedRun, output: str) -> Base:
        table = TableOutput.of(output)
        if table is None:
            return base_of_folder(Path(output))
        group = Group(self._launch, self._attempt, (Member(run, table),))
        (base,) = self._tables.retried(table.table, lambda: _bases(group, self._tables.session()))
        return base

    def _compared(self, group: Group, wanted: Collection[int], earlier: Sequence[Group]) -> dict[int, BaseChanged]:
        """Of the runs that are ``wanted``, unless a publisher has published them or begun to."""
        output = group.output

        def once() -> dict[int, BaseChanged]:
            session = self._tables.session()
            table = FORMATS[output.format](session, output.table)
            done = versions_in(table, [*earlier, group])
            rest = [
                each
                for each in group.singles()
                if each.runs[0].id in wanted and each.runs[0].id not in done and not table.is_begun(each)
            ]
            if not rest:
                return {}
            open = replace(group, members=tuple(member for each in rest for member in each.members))
            return self.rows(open).changed(table, open, session)

        return self._tables.retried(output.table, once)


def _only(run: LaunchedRun, output: str) -> LaunchedRun:
    """The run with one of its outputs."""
    number = run.outputs.index(output)
    return replace(run, outputs=(output,), bases=run.bases[number : number + 1])


def _base(run: LaunchedRun, number: int) -> Base | None:
    return Base.of(run.bases[number]) if run.bases else None


def _number(member: Member) -> int:
    """Which of its run's outputs a table is."""
    return next(n for n, each in enumerate(member.run.outputs) if TableOutput.of(each) == member.output)


def _is_folder(output: str) -> bool:
    return TableOutput.of(output) is None
