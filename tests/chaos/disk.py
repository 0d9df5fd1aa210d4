"""A full disk under Postgres: the runs' table on a small file system of its own, filled to the last byte, then freed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import connect, sql

from tests.chaos.stage import Stage
from tests.support.installation import until

SIZE_MB = 16
FULL_SECONDS = 10.0
INDEXES = "SELECT indexname FROM pg_indexes WHERE schemaname = 'retrofill' AND tablename = 'run'"


def disk_full(stage: Stage) -> None:
    """No room for runs for a while; where nothing may be mounted, this scenario says so and does nothing."""
    place = stage.made.settings.home / "small"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if done.returncode != 0:
        stage.facts["not done"] = f"a small file system cannot be mounted here: {done.stderr.strip()}"
        return
    try:
        with _runs_in(stage, place):
            filler = place / "filler"
            _fill(filler)
            stage.fault("full disk under Postgres")
            logs = [replica for name in ("backfill-planner", "run-starter") for replica in stage.crew.of(name)]
            until(
                lambda: any("DiskFull" in replica.said() for replica in logs),
                "a service is told that the disk is full",
                seconds=120,
            )
            stage.wait(FULL_SECONDS)
            filler.unlink()
            stage.recovered("Postgres without room")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def _runs_in(stage: Stage, place: Path) -> Iterator[None]:
    """The table and its indexes in a tablespace there."""
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


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return  # it is full: that is what was wanted
