"""``run.stage_table(rows, table, column)``: rows that replace those of the interval after the attempt is accepted.

They are written to a table of their own, next to the target or in the namespace of the setting ``staged_tables``: where the
catalog lets Spark write, in the same format, and no reader of the target sees them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable
from urllib.parse import unquote

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.outputs.cannot_stage import CannotStage, NoSuchTable
from retrofill.outputs.tables.checks import (
    fitted,
    refuse_ambiguous,
    refuse_clock_partitions,
    refuse_misplaced,
    refuse_nulls,
    refuse_other_text,
    refuse_shared_files,
)
from retrofill.outputs.tables.formats import FORMATS, HIVE, TARGETS, provider_of
from retrofill.outputs.tables.group import Group, Member
from retrofill.outputs.tables.hive import Locations, refuse_partitions, written_by_script
from retrofill.outputs.tables.hive_partitions import describe
from retrofill.outputs.tables.hive_records import discard
from retrofill.outputs.tables.iceberg import Branch, drop_branch
from retrofill.outputs.tables.key import Key, key_of_table
from retrofill.outputs.tables.protocol import Target, drop
from retrofill.outputs.tables.sweeping import StagedTables
from retrofill.protocol.launch import Interval, Launch, Piece, interval_of
from retrofill.protocol.table_output import TableOutput, column_of, joined, parts_of
from retrofill.sdk.texts import BRANCH, Declared, Table, path_in

log = get_log(__name__)
MAX_TABLES = 100


@dataclass(frozen=True)
class _Found:
    """A table for which rows may be staged by a ``key``. ``name``: of its ``parts``."""

    parts: list[str]
    name: str
    provider: str
    schema: Any
    key: Key
    rules: Target


@dataclass(frozen=True)
class _Lent:
    """What a script writes to instead of ``table``: the table ``name``, or a branch. ``version``: before that."""

    table: Table
    name: str
    version: str
    key: Key
    branch: Branch | None = None


class TableStaging:
    """The tables that an attempt stages for the runs of a piece. Thread-safe."""

    def __init__(self, launch: Launch, piece: Piece, tables: StagedTables | None = None) -> None:
        """``tables``: of all pieces of the attempt."""
        self._launch = launch
        self._piece = piece
        self._tables = tables or StagedTables(launch)
        self._lock = threading.Lock()
        # With what drops them.
        self._written: list[tuple[str, Callable[[], object]]] = []
        # By the target's whole name. Only rows that passed all checks are staged.
        self._tasks: dict[str, str] = {}
        self._staged: dict[str, TableOutput] = {}
        # By task.
        self._lent: dict[str, list[_Lent]] = {}
        self._branches: dict[str, str] = {}

    def begin_try(self, task: str) -> None:
        """Forget what an earlier try of the task staged. Its tables are dropped later."""
        with self._lock:
            for target in [target for target, other in self._tasks.items() if other == task]:
                self._staged.pop(target, None)
                del self._tasks[target]
            self._lent.pop(task, None)
            self._branches.pop(task, None)

    def has_staged(self, task: str) -> bool:
        """Whether the task has staged a table."""
        with self._lock:
            return task in self._tasks.values()

    def stage(
        self,
        task: str,
        session: Any,
        rows: Any,
        table: str,
        column: Declared,
        zone: str = "",
        *,
        restored: bool = False,
    ) -> None:
        """Write the rows, which become those of the intervals.

        ``column``, ``zone``: the table's key, as declared. A later call by the same task replaces them. ``restored``: they were
        in the table before, so they have values that only the table makes. Raises ``CannotStage``.
        """
        found = self._find(session, table, column, zone)
        target, key, schema = found.name, found.key, found.schema
        staged = self._new(task, session, found)
        identity = FORMATS[found.provider](session, target).identity()
        output = TableOutput(
            target, staged, key.column, key.type, found.provider, formats=key.formats, identity=identity
        )
        with self._lock:
            self._staged.pop(target, None)
        output = self._write(found.rules, rows, schema, output, restored)
        written = session.table(output.staged)
        refuse_misplaced(written, schema, key, self._intervals, interval_of(self._launch, self._piece), table)
        refuse_nulls(written, schema, table)
        with self._lock:
            self._staged[target] = output

    def lend(self, task: str, session: Any, table: Table) -> str:
        """A table like the target, for a script that writes to it instead, and then to be taken back.

        Raises ``CannotStage``.
        """
        found = self._find(session, table.name, table.column, table.zone)
        name = self._new(task, session, found)
        filled = found.rules.create_like(name)
        if filled.by_commit:
            raise CannotStage(
                f"{table.name} has the identity columns {', '.join(filled.by_commit)}, whose values only a commit to it makes: "
                "write it in a function, with run.stage_table"
            )
        if table.with_rows:
            present = f"SELECT * FROM {found.name} WHERE {found.key.condition(self._intervals)}"
            session.sql(f"INSERT INTO {name} {present}")
        with self._lock:
            self._lent.setdefault(task, []).append(_Lent(table, name, self._version(session, name), found.key))
        return name

    def location(self, session: Any, lent: str) -> str:
        """The directory of a table that was lent. Raises ``CannotStage``."""
        parts = parts_of(lent)
        if _is_path(parts):
            return parts[-1]
        if provider_of(session, lent) == "iceberg":
            raise CannotStage(
                f"only Iceberg knows which files are in its table {lent}: pass its name, as {{stage_table:NAME}}"
            )
        location = describe(session, lent).location
        local = path_in(location)
        return location if local is None else unquote(local)

    def redirect(self, task: str, session: Any, table: Table) -> str:
        """A branch of the table, for the commits of a script, and then to be taken back. All tables of a task have the same.

        Raises ``CannotStage``.
        """
        found = self._find(session, table.name, table.column, table.zone)
        if found.provider != "iceberg":
            raise CannotStage(
                f"{table.name} is a {found.provider} table, but only commits to Iceberg tables can be redirected: let the script "
                f"write to {{stage_table:{table.name}}}"
            )
        self._tables.sweep_branches(session, found.name)
        with self._lock:
            self._claim(task, found.name)
            number = len(self._written) + 1
            name = self._branches.setdefault(task, self._tables.name("script", self._piece, number))
            self._written.append((f"{found.name} {name}", partial(drop_branch, session, found.name, name)))
        branch = Branch.create(session, found.name, name)
        with self._lock:
            self._lent.setdefault(task, []).append(_Lent(table, name, branch.base, found.key, branch))
        return name

    def take_back(self, task: str, session: Any) -> None:
        """Stage what the task's script has written to the tables that were lent to it. Raises ``CannotStage``."""
        with self._lock:
            lent = self._lent.pop(task, [])
        for each in lent:
            table, branch = each.table, each.branch
            version = self._version(session, each.name) if branch is None else branch.head()
            if not table.sparse and version == each.version:
                raise CannotStage(_nothing_written(task, table))
            rows = session.table(each.name) if branch is None else branch.rows(each.key.condition(self._intervals))
            self.stage(task, session, rows, table.name, table.column, table.zone)

    def _version(self, session: Any, lent: str) -> str:
        """Of a table that was lent. Raises ``CannotStage`` if the script has dropped it."""
        if not session.catalog.tableExists(lent):
            raise CannotStage(f"the script dropped {lent}, the table that it was given")
        provider = provider_of(session, lent)
        if provider in HIVE:
            return written_by_script(session, lent)
        return FORMATS[provider](session, lent).version() if provider in FORMATS else provider

    @property
    def _intervals(self) -> list[Interval]:
        return [interval_of(self._launch, run) for run in self._piece.runs]

    def _find(self, session: Any, table: str, column: Declared, zone: str) -> _Found:
        """The target, if it can be staged by this key. Raises ``CannotStage``."""
        parts = resolved(session, table)
        target = joined(parts)
        provider = provider_of(session, target)
        if provider not in FORMATS:
            raise CannotStage(
                f"{table} is a {provider} table: stage an Iceberg or Delta table, or one whose partitions are in a Hive metastore"
            )
        schema = session.table(target).schema
        key = self._key(session, target, provider, schema, table, column, zone)
        rules = TARGETS[provider](session, target)
        rules.refuse([key.condition([each]) for each in self._intervals])
        return _Found(parts, target, provider, schema, key, rules)

    def _new(self, task: str, session: Any, found: _Found) -> str:
        """The name of a new table, which is dropped at the end unless it is staged."""
        parts = self._name(task, found.name, found.parts)
        if not _is_path(found.parts):
            self._tables.sweep(session, parts[:-1])
        with self._lock:
            dropping = discard if found.provider in HIVE else drop
            self._written.append((joined(parts), partial(dropping, session, joined(parts))))
        return joined(parts)

    def _key(
        self, session: Any, target: str, provider: str, schema: Any, table: str, column: Declared, zone: str
    ) -> Key:
        """The table's key, if the rows of the intervals can be replaced alone by it. Raises ``CannotStage``."""
        key = key_of_table(column, zone, schema, table)
        for each in self._intervals:
            refuse_ambiguous(key, each)
        if isinstance(column, str):
            refuse_other_text(self._launch, session, target, key)
        if provider == "delta":
            refuse_clock_partitions(session, target, schema)
        elif provider == "iceberg":
            refuse_shared_files(session, target, key, self._intervals)
        else:
            refuse_partitions(session, target, key, self._intervals)
        return key

    def _write(self, rules: Target, rows: Any, schema: Any, output: TableOutput, restored: bool) -> TableOutput:
        """Write the staged table. Returns the output, with what only its commit fills."""
        filled = rules.create(output.staged, schema)
        if isinstance(rows, Locations):
            rules.write(rows, output)
            return output
        if restored:
            rows = rows.drop(*filled.always)
        have = {name.lower() for name in rows.columns}
        output = replace(output, filled=tuple(name for name in filled.by_commit if name.lower() not in have))
        ready = fitted(rows, schema, output.table, {*filled.when_staged, *filled.by_commit})
        rules.write(_together(ready, output) if len(self._piece.runs) > 1 else ready, output)
        return output

    def restore(self, task: str, session: Any, undone: TableOutput) -> None:
        """Stage the rows that the intervals had before the runs that these undo published them.

        Raises ``NotKept`` or ``CannotStage``.
        """
        rows = FORMATS[undone.format](session, undone.table).rows_before(self._undoing(undone))
        key = Key.of(undone)
        self.stage(task, session, rows, undone.table, key.declared, key.zone, restored=True)

    def refuse_changed(self, session: Any, undone: TableOutput) -> None:
        """Raise ``PublishedAgain`` or ``NotKept`` if one of the intervals was changed since."""
        group = self._undoing(undone)
        for error in FORMATS[undone.format](session, undone.table).changed(group).values():
            raise error

    def _undoing(self, undone: TableOutput) -> Group:
        """The runs of the piece, as they undo others' output in a table."""
        members = (Member(run, replace(undone, undoes=run.restores or 0)) for run in self._piece.runs)
        return Group(self._launch, self._launch.attempt_id, tuple(members))

    def staged(self, session: Any, table: str) -> Any:
        """The rows that a task of this run has staged. Raises ``CannotStage`` if none did."""
        target = joined(resolved(session, table))
        with self._lock:
            if target not in self._staged:
                raise CannotStage(f"no task of this run has staged {table}: read the table itself instead")
            return self._staged[target].rows(session)

    def outputs(self) -> dict[int, tuple[str, ...]]:
        """The outputs of each run, by its id."""
        runs = self._piece.runs
        with self._lock:
            outputs = list(self._staged.values())
        if not outputs:
            return {}
        return {run.id: tuple(str(replace(each, undoes=run.restores or 0)) for each in outputs) for run in runs}

    def discard(self) -> None:
        """Drop the tables of a failed attempt."""
        with self._lock:
            self._staged.clear()
        self.drop_unstaged()

    def drop_unstaged(self) -> None:
        """Drop the tables that are not staged any more."""
        with self._lock:
            staged = {each.staged for each in self._staged.values()}
            for name, dropping in self._written:
                try:
                    if name not in staged:
                        dropping()
                except Exception as e:  # noqa: BLE001 - how the attempt ended is what is to be reported
                    log.warning("staged_table_not_dropped", table=name, error=first_line(e))

    def _name(self, task: str, target: str, parts: list[str]) -> list[str]:
        """The parts of a new table's name."""
        with self._lock:
            self._claim(task, target)
            name = self._tables.name(parts[-1], self._piece, len(self._written) + 1)
        elsewhere = self._launch.staged_tables
        if elsewhere is None or _is_path(parts):
            return [*parts[:-1], name]
        return [parts[0], *parts_of(elsewhere), name]

    def _claim(self, task: str, target: str) -> None:
        other = self._tasks.setdefault(target, task)
        if other != task:
            raise CannotStage(f"task {other!r} already stages {target}: only one task may write a table")
        if len(self._tasks) > MAX_TABLES:
            raise CannotStage(f"a run may stage at most {MAX_TABLES} tables")


def _nothing_written(task: str, table: Table) -> str:
    if table.redirected:
        return (
            f"task {task!r} committed nothing to {table.name}, as far as {BRANCH} redirects it: did it write somewhere else, or by "
            "another branch? If it may leave the interval as it is, declare the table with sparse=True"
        )
    return (
        f"task {task!r} wrote nothing to the table that it was given instead of {table.name}: did it write somewhere "
        "else? If the interval may have no rows, declare the table with sparse=True"
    )


def resolved(session: Any, table: str) -> list[str]:
    """The parts of a table's whole name. Raises ``NoSuchTable``, or ``CannotStage`` for a view."""
    from pyspark.errors import AnalysisException

    try:
        parts_of(table)
        found = session.catalog.getTable(table)
    except ValueError as e:
        raise NoSuchTable(str(e)) from e
    except AnalysisException as e:
        raise NoSuchTable(f"table {table} does not exist: create it first ({first_line(e)})") from e
    if found.catalog is None or found.tableType in ("VIEW", "TEMPORARY"):
        raise CannotStage(f"{table} is a view: stage the table that it reads")
    # The tables of a path have no catalog.
    path = found.namespace == ["delta"] and "/" in found.name
    return [*([] if path else [found.catalog]), *(found.namespace or []), found.name]


def _is_path(parts: list[str]) -> bool:
    return "/" in parts[-1]


def _together(rows: Any, output: TableOutput) -> Any:
    """The rows of each interval together, as each may have to be published by itself.

    The staged table is not partitioned: a file for each interval would be written and read once more. Iceberg gathers the rows
    of a partition when they are committed, Delta does not.
    """
    columns = [each.name for each in Key.of(output).columns]
    if not {*columns} <= {*rows.columns}:
        return rows  # the table fills it
    by = [column_of(each) for each in columns]
    gathered = rows.repartition(*by) if (output.format, output.type) == ("delta", "date") else rows
    return gathered.sortWithinPartitions(*by)
