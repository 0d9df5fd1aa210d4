"""Drops staged tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.protocol.table_output import parts_of, path_in

log = get_log(__name__)
# In the names of all staged tables.
OURS = "__retrofill_"
# Iceberg says so where gc.enabled is false.
_KEEPS_FILES = "GC is disabled"


def drop(session: Any, table: str) -> None:
    """Drop a staged table and its files."""
    try:
        session.sql(f"DROP TABLE IF EXISTS {table} PURGE")
    except Exception as e:
        if _KEEPS_FILES not in str(e):
            raise
        _drop_kept(session, table)
    name = parts_of(table)[-1]
    folder = Path(path_in(name) or name)
    # Nothing else is ever deleted, whatever a name may look like.
    if folder.is_absolute() and OURS in folder.name:
        # Spark only forgets a table that is named by its path.
        shutil.rmtree(folder, ignore_errors=True)


def _drop_kept(session: Any, table: str) -> None:
    """Drop a staged table of a catalog that sets ``gc.enabled=false`` for all tables."""
    session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('gc.enabled'='true')")
    try:
        session.sql(f"DROP TABLE IF EXISTS {table} PURGE")
    except Exception as e:  # noqa: BLE001 - such as Nessie, which sets it again: its own collection deletes the files
        log.info("files_of_staged_table_left_to_the_catalog", table=table, error=first_line(e))
        session.sql(f"DROP TABLE IF EXISTS {table}")
