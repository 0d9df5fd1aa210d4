"""Hive: what could not be published by the locations of partitions is refused when output is staged."""

from __future__ import annotations

from typing import Any, Sequence

from retrofill.errors import first_line
from retrofill.outputs.cannot_stage import CannotStage, DoesNotFit
from retrofill.outputs.tables.hive import UNKNOWN_NAME, Locations, refuse_other_readers
from retrofill.outputs.tables.hive_partitions import SESSION_CATALOG, Partitions, describe, name_of
from retrofill.outputs.tables.hive_records import TARGET, create_like
from retrofill.outputs.tables.key import CLOCKS, Key
from retrofill.outputs.tables.protocol import NotPublished
from retrofill.outputs.tables.target import Filled, properties_of
from retrofill.protocol.interval import Interval
from retrofill.protocol.table_output import TableOutput, parts_of

# Spark writes no such lines, but others leave them out when they read.
_LINES = ("skip.header.line.count", "skip.footer.line.count")
_DYNAMIC = "hive.exec.dynamic.partition.mode"


class HiveTarget:
    """Implements ``Target``."""

    def __init__(self, session: Any, table: str) -> None:
        self._session = session
        self._table = table

    def refuse(self, conditions: Sequence[str]) -> None:  # noqa: ARG002 - ``refuse_partitions`` has seen the key
        properties = properties_of(self._session, self._table)
        if properties.get("transactional", "").lower() == "true":
            raise CannotStage(f"{self._table} is a transactional Hive table, which Spark does not write: stage another")
        lines = next((name for name in _LINES if properties.get(name, "0") != "0"), None)
        if lines is not None:
            raise CannotStage(
                f"{self._table} has {lines}={properties[lines]}, but Spark writes no such lines: unset it"
            )

    def create(self, staged: str, schema: Any) -> Filled:  # noqa: ARG002 - it is like the target
        create_like(self._session, staged, self._table, {TARGET: self._table})
        return Filled()

    def create_like(self, staged: str) -> Filled:  # noqa: ARG002 - none is created
        # Such a table has no versions, so writes of a script to it are not detected.
        raise CannotStage(
            f"{self._table} is a {describe(self._session, self._table).provider} table, which cannot be lent to a "
            "script or program: write it in a function, with run.stage_table, or in a file of SQL"
        )

    def write(self, rows: Any, output: TableOutput) -> None:
        from pyspark.errors import AnalysisException

        if isinstance(rows, Locations):
            Partitions(self._session, output.staged).add({**rows.of})
            return
        if describe(self._session, self._table).provider == "hive":
            # Only a directory of ours is written to.
            self._session.conf.set(_DYNAMIC, "nonstrict")
        try:
            rows.write.insertInto(output.staged)
        except AnalysisException as e:
            raise DoesNotFit(f"the rows break a rule of {self._table}: {first_line(e)}") from e


def refuse_partitions(session: Any, table: str, key: Key, intervals: Sequence[Interval]) -> None:
    """Raise ``CannotStage`` if partitions do not tell the intervals apart, or cannot be pointed at other files."""
    if parts_of(table)[0] != SESSION_CATALOG:
        raise CannotStage(f"{table} is not in {SESSION_CATALOG}, where Spark changes the locations of partitions")
    info = describe(session, table)
    own = {name.lower() for name in info.partitioned_by}
    other = next((each.name for each in key.columns if each.name.lower() not in own), None)
    if other is not None:
        raise CannotStage(
            f"{table} is not partitioned by {other!r}: of a {info.provider} table whole partitions are replaced, "
            f"so partition it by {key.column}, or use an Iceberg or Delta table"
        )
    if any(each.type in CLOCKS for each in key.columns):
        raise CannotStage(
            f"{table} is partitioned by the timestamp {key.column!r}, whose names depend on the session's clock: "
            "partition it by a date, or by text of a declared format"
        )
    if info.about.get("Partition Provider") != "Catalog":
        raise CannotStage(
            f"the partitions of {table} are not in its metastore: create it in one, or run MSCK REPAIR TABLE {table}"
        )
    partitions = Partitions(session, table)
    for spec in partitions.of_intervals(key, intervals):
        found = partitions.get(spec)
        if found is None:
            raise CannotStage(UNKNOWN_NAME.format(table=table, partition=name_of(spec)))
        try:
            refuse_other_readers(session, table, spec, found)
        except NotPublished as e:
            raise CannotStage(str(e)) from e
