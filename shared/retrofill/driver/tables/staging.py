"""``run.stage_table(rows, table, column)``: rows that replace those of the interval after the attempt is accepted.

They are written to a table of their own, next to the target: ``flights__retrofill_3f2a9c01d4_25_1`` is the first
one of attempt 25 for ``flights`` and one interval. So they are where the catalog lets Spark write, in the same
format, and no reader of the target sees them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from dataclasses import replace
from datetime import timezone
from pathlib import Path
from typing import Any, Collection

from retrofill.driver.cannot_stage import CannotStage, NoSuchColumn, NoSuchTable
from retrofill.driver.file_uri import path_in
from retrofill.driver.interval import interval_of
from retrofill.driver.launch import Launch, Piece
from retrofill.driver.log import get_log
from retrofill.driver.tables.formats import FORMATS, provider_of
from retrofill.driver.tables.interval import condition
from retrofill.driver.tables.marker import of_run
from retrofill.driver.tables.output import TableOutput, joined, parts_of, quoted
from retrofill.driver.tables.rows import fitted, refuse_misplaced
from retrofill.driver.tables.states import aligned
from retrofill.errors import first_line

log = get_log(__name__)
# In the names of all staged tables.
OURS = "__retrofill_"
MAX_TABLES = 100


class TableStaging:
    """The tables that an attempt stages for the runs of a piece. Thread-safe."""

    def __init__(self, launch: Launch, piece: Piece) -> None:
        self._launch = launch
        self._piece = piece
        self._lock = threading.Lock()
        self._written: list[tuple[Any, str]] = []
        # By the target's whole name. Only rows that passed all checks are staged.
        self._tasks: dict[str, str] = {}
        self._staged: dict[str, TableOutput] = {}

    def begin_try(self, task: str) -> None:
        """Forget what an earlier try of the task staged. Its tables are dropped later."""
        with self._lock:
            for target in [target for target, other in self._tasks.items() if other == task]:
                self._staged.pop(target, None)
                del self._tasks[target]

    def stage(self, task: str, session: Any, rows: Any, table: str, column: str) -> None:
        """Write the rows, which become those of the intervals.

        A later call by the same task replaces them. Raises ``CannotStage``.
        """
        parts = resolved(session, table)
        target = joined(parts)
        provider = provider_of(session, target)
        if provider not in FORMATS:
            raise CannotStage(f"{table} is a {provider} table: only commits to Iceberg and Delta can be conditional")
        schema = session.table(target).schema
        found = next((field for field in schema if field.name.lower() == column.lower()), None)
        if found is None:
            raise NoSuchColumn(
                f"{table} has no column {column!r}: name the one that tells to which interval a row belongs"
            )
        type = found.dataType.simpleString()
        for run in self._piece.runs:
            condition(found.name, type, interval_of(self._launch, run))
        whole = interval_of(self._launch, self._piece)
        ours = condition(found.name, type, whole)
        ready = fitted(rows, schema, table)
        staged = self._name(task, target, parts)
        sweep(session, parts, staged[-1], self._prefix(parts), self._launch.unpublished)
        identity = FORMATS[provider](session, target).identity()
        output = TableOutput(target, joined(staged), found.name, type, provider, identity=identity)
        with self._lock:
            self._staged.pop(target, None)
            self._written.append((session, output.staged))
        _write(ready, output, many=len(self._piece.runs) > 1)
        refuse_misplaced(session.table(output.staged), schema, found.name, ours, whole, table)
        with self._lock:
            self._staged[target] = output

    def restore(self, task: str, session: Any, undone: TableOutput) -> None:
        """Stage the rows that the interval had before the run that this one undoes published it.

        Raises ``NotKept`` or ``CannotStage``.
        """
        (run,) = self._piece.runs
        assert run.restores is not None
        table = FORMATS[undone.format](session, undone.table)
        before = table.before(of_run(self._launch.installation, run.restores))
        ours = condition(undone.column, undone.type, interval_of(self._launch, run))
        rows = aligned(before, session.table(undone.table).schema).where(ours)
        self.stage(task, session, rows, undone.table, undone.column)
        with self._lock:
            self._staged[undone.table] = replace(self._staged[undone.table], undoes=run.restores)

    def staged(self, session: Any, table: str) -> Any:
        """The rows that a task of this run has staged. Raises ``CannotStage`` if none did."""
        target = joined(resolved(session, table))
        with self._lock:
            if target not in self._staged:
                raise CannotStage(f"no task of this run has staged {table}: read the table itself instead")
            return session.table(self._staged[target].staged)

    def outputs(self) -> dict[int, tuple[str, ...]]:
        """The outputs of each run, by its id."""
        runs = self._piece.runs
        with self._lock:
            outputs = list(self._staged.values())
        if not outputs:
            return {}
        last = {run.id: len(runs) if run is runs[-1] else 0 for run in runs}
        return {run.id: tuple(str(replace(each, drops=last[run.id])) for each in outputs) for run in runs}

    def discard(self) -> None:
        """Drop the tables of a failed attempt."""
        with self._lock:
            self._staged.clear()
        self.drop_unstaged()

    def drop_unstaged(self) -> None:
        """Drop the tables that are not staged any more."""
        with self._lock:
            staged = {each.staged for each in self._staged.values()}
            for session, name in self._written:
                try:
                    if name not in staged:
                        drop(session, name)
                except Exception as e:  # noqa: BLE001 - how the attempt ended is what is to be reported
                    log.warning("staged_table_not_dropped", table=name, error=first_line(e))

    def _name(self, task: str, target: str, parts: list[str]) -> list[str]:
        """The parts of a new table's name."""
        with self._lock:
            other = self._tasks.setdefault(target, task)
            if other != task:
                raise CannotStage(f"task {other!r} already stages {target}: only one task may write a table")
            if len(self._tasks) > MAX_TABLES:
                raise CannotStage(f"a run may stage at most {MAX_TABLES} tables")
            return [*parts[:-1], f"{self._prefix(parts)}{self._launch.attempt_id}_{len(self._written) + 1}"]

    def _prefix(self, parts: list[str]) -> str:
        """What the names of all attempts at this interval begin with."""
        start = self._piece.interval_start.astimezone(timezone.utc).isoformat()
        text = f"{self._launch.installation} {self._launch.pipeline.name} {start}"
        return f"{parts[-1]}{OURS}{hashlib.sha256(text.encode()).hexdigest()[:10]}_"


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


def _write(rows: Any, output: TableOutput, *, many: bool) -> None:
    """Create the staged table. The rows of each of ``many`` intervals stay together, as each is read by itself."""
    from pyspark.sql.functions import col

    column = col(quoted(output.column))
    if many:
        rows = rows.repartition(column) if output.type == "date" else rows.sortWithinPartitions(column)
    writer = rows.writeTo(output.staged).using(output.format)
    if many and output.type == "date":
        writer = writer.partitionedBy(column)
    writer.create()


def drop(session: Any, table: str) -> None:
    """Drop a staged table and its files."""
    session.sql(f"DROP TABLE IF EXISTS {table} PURGE").collect()
    name = parts_of(table)[-1]
    folder = Path(path_in(name) or name)
    # Nothing else is ever deleted, whatever a name may look like.
    if folder.is_absolute() and OURS in folder.name:
        # Spark only forgets a table that is named by its path.
        shutil.rmtree(folder, ignore_errors=True)


def sweep(session: Any, parts: list[str], own: str, prefix: str, unpublished: Collection[int] = ()) -> None:
    """Drop what earlier attempts at the interval have left: they were not accepted, or are published.

    Not those of ``unpublished`` attempts: the table of a range begins with its first interval, which may be tried again
    while the others wait for a publisher or a review.
    """
    if "/" in parts[-1]:
        return
    # Spark takes a pattern apart at | and the parts for regular expressions, so it may list more than was asked for.
    pattern = re.sub(r"[^A-Za-z0-9_]", "*", prefix)
    found = session.sql(f"SHOW TABLES IN {joined(parts[:-1])} LIKE '{pattern}*'").collect()
    kept = tuple(f"{prefix}{id}_".lower() for id in unpublished)
    for name in (row.tableName for row in found):
        if name != own and name.lower().startswith(prefix.lower()) and not name.lower().startswith(kept):
            drop(session, joined([*parts[:-1], name]))
