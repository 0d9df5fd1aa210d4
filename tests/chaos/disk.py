"""A full disk under Postgres: the ``run`` table on a small file system, filled and then freed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import connect, sql

from tests.chaos.small_disk import FULL_SECONDS, fill, mounted
from tests.chaos.stage import Stage
from tests.support.installation import until

SIZE_MB = 16
INDEXES = "SELECT indexname FROM pg_indexes WHERE schemaname = 'retrofill' AND tablename = 'run'"


def disk_full(stage: Stage) -> None:
    """Fill the file system that holds the ``run`` table until a service reports the error."""
    place = stage.made.settings.home / "small"
    place.mkdir()
    with mounted(place, SIZE_MB), _runs_in(stage, place):
        filler = place / "filler"
        fill(filler)
        logs = [replica for name in ("backfill-planner", "run-starter") for replica in stage.crew.of(name)]
        until(
            lambda: any("DiskFull" in replica.said() for replica in logs),
            "a service is told that the disk is full",
            seconds=120,
        )
        stage.fault("full disk under Postgres")
        stage.wait(FULL_SECONDS)
        filler.unlink()
        stage.recovered("Postgres without room")


@contextmanager
def _runs_in(stage: Stage, place: Path) -> Iterator[None]:
    """Move the ``run`` table and its indexes to a tablespace in ``place``."""
    data = place / "data"
    data.mkdir(mode=0o700)
    os.chown(data, _owner_of_postgres(stage), -1)
    name = sql.Identifier(f"small_{stage.made.settings.topic_prefix.rstrip('.')}")
    _move(stage, sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(name, sql.Literal(str(data))), name)
    try:
        yield
    finally:
        _move(stage, None, sql.Identifier("pg_default"))
        _execute(stage, sql.SQL("DROP TABLESPACE {}").format(name))


def _move(stage: Stage, first: sql.Composed | None, tablespace: sql.Identifier) -> None:
    if first is not None:
        _execute(stage, first)
    _execute(stage, sql.SQL("ALTER TABLE retrofill.run SET TABLESPACE {}").format(tablespace))
    for row in stage.made.query(INDEXES):
        index = sql.Identifier("retrofill", row["indexname"])
        _execute(stage, sql.SQL("ALTER INDEX {} SET TABLESPACE {}").format(index, tablespace))


def _execute(stage: Stage, statement: sql.Composed) -> None:
    with connect(stage.made.settings.dsn_of("owner"), autocommit=True) as conn:
        conn.execute(statement)


def _owner_of_postgres(stage: Stage) -> int:
    return (stage.made.settings.home.parent / "postgres").stat().st_uid
