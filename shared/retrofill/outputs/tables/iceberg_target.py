"""Iceberg: what no commit could replace, or no reader would see, is asked of Iceberg itself when output is staged."""

from __future__ import annotations

import re
from typing import Any, Sequence

from retrofill.outputs.cannot_stage import CannotStage
from retrofill.outputs.tables.target import Filled, properties_of
from retrofill.protocol.table_output import TableOutput, joined, parts_of
from retrofill.sdk.tables import REDIRECTIONS

# As Spark shows them. Columns are in lines of their own, which begin with their names.
_PARTITIONS = re.compile(r"^PARTITIONED BY \(.*\)$", re.MULTILINE)
AUDITED = "write.wap.enabled"
# The catalog, the namespace and the table.
_PARTS_OF_A_TABLE = 3
MIXED = (
    "{table} has a file with rows of several intervals, of which Iceberg cannot replace a part: partition it so that each "
    "file has rows of one interval, by its column or by hours of it, and rewrite its files (rewrite_data_files, rewrite-all)"
)


class IcebergTarget:
    """Implements ``Target``."""

    def __init__(self, session: Any, table: str) -> None:
        self._session = session
        self._table = table
        self._properties = properties_of(session, table)

    def refuse(self, conditions: Sequence[str]) -> None:
        self._refuse_part_of_a_table()
        _refuse_redirected(self._session, self._table)
        if not self._replaces_whole_files(conditions):
            raise CannotStage(MIXED.format(table=self._table))

    def create(self, staged: str, schema: Any) -> Filled:  # noqa: ARG002 - it is created with its rows
        return Filled()

    def create_like(self, staged: str) -> Filled:
        (shown,) = self._session.sql(f"SHOW CREATE TABLE {self._table}").collect()
        found = _PARTITIONS.search(shown[0])
        partitions = found.group() if found else ""
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in self._own.items())
        self._session.sql(
            f"CREATE TABLE {staged} USING iceberg {partitions} TBLPROPERTIES ({properties}) "
            f"AS SELECT * FROM {self._table} WHERE false"
        )
        _refuse_redirected(self._session, staged)
        return Filled()

    @property
    def _own(self) -> dict[str, str]:
        """The properties of a staged table. A catalog's defaults may be others."""
        return {"gc.enabled": "true", AUDITED: "false", "format-version": self._properties.get("format-version", "2")}

    def write(self, rows: Any, output: TableOutput) -> None:
        writer = rows.writeTo(output.staged).using("iceberg")
        for name, value in self._own.items():
            writer = writer.tableProperty(name, value)
        writer.create()
        # A catalog may override them.
        _refuse_redirected(self._session, output.staged)

    def _refuse_part_of_a_table(self) -> None:
        """Iceberg takes ``t.branch_b`` for a branch of ``t``."""
        *parent, part = parts_of(self._table)
        if len(parent) >= _PARTS_OF_A_TABLE and self._session.catalog.tableExists(joined(parent)):
            raise CannotStage(
                f"{part} is a part of {joined(parent)}, where its readers do not look: stage {joined(parent)}"
            )

    def _replaces_whole_files(self, conditions: Sequence[str]) -> bool:
        """Whether Iceberg would delete these rows by whole files, each of them of one condition. Only plans the statement."""
        condition = " OR ".join(f"({each})" for each in conditions)
        (row,) = self._session.sql(f"EXPLAIN DELETE FROM {self._table} WHERE {condition}").collect()
        return any(line.startswith("DeleteFromTable") for line in str(row[0]).splitlines()[:2])


def is_audited(session: Any, table: str) -> bool:
    """Whether a session's ``REDIRECTIONS`` apply to commits to the table."""
    return properties_of(session, table).get(AUDITED, "").lower() == "true"


def _refuse_redirected(session: Any, table: str) -> None:
    """Raise ``CannotStage`` if the session's commits to the table would not become its current state."""
    setting = next((name for name in REDIRECTIONS if session.conf.get(name, "")), None)
    if setting is not None and is_audited(session, table):
        raise CannotStage(
            f"{table} has {AUDITED}=true and the session {setting}={session.conf.get(setting, '')}, so its readers would not "
            f"see the rows: call run.spark.conf.unset('{setting}') first, and request the backfill with --review to audit them"
        )


def use_current_state(session: Any) -> None:
    """Let a session of ours read and commit what the tables' readers see, whatever the server's settings are."""
    for name in REDIRECTIONS:
        session.conf.unset(name)
