"""Moves a server's directory to a small file system, fills it completely, then frees it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrofill_tools.stack.layout import KAFKA, POSTGRES
from tests.chaos.server_faults import own
from tests.chaos.servers import OwnServers
from tests.chaos.stage import Stage
from tests.support.installation import until

FULL_SECONDS = 10.0
# More segments than max_wal_size (1 GB) allows for.
SWITCHES = """
SELECT pg_switch_wal() FROM generate_series(1, 100) AS n, LATERAL pg_logical_emit_message(true, 'a', n::text)
"""
MB = 1_000_000
# Free space in addition to the directory's current content.
ROOM_MB = 96


@contextmanager
def mounted(place: Path, size_mb: int) -> Iterator[None]:
    """Mount a small file system. Fails if mounting is not permitted."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(place)], capture_output=True, text=True
    )
    assert done.returncode == 0, f"a small file system cannot be mounted here: {done.stderr.strip()}"
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(filler: Path) -> None:
    """Fill the file system completely."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return  # full, as intended


def wal_full(stage: Stage) -> None:
    """No room for Postgres' write-ahead log: it panics and cannot restart until there is space."""
    servers = own(stage)
    folder = servers.layout.data(POSTGRES) / "pg_wal"
    with _on_small_disk(servers, POSTGRES, folder):
        stage.recovered("Postgres with its log elsewhere")
        with _no_segment_recycled(stage):
            _fill_for_a_while(stage, POSTGRES, folder, "full disk under Postgres' write-ahead log")


def kafka_full(stage: Stage) -> None:
    """No room for Kafka's logs: the broker stops and cannot restart until there is space."""
    servers = own(stage)
    folder = servers.layout.data(KAFKA)
    with _on_small_disk(servers, KAFKA, folder):
        stage.recovered("Kafka with its logs elsewhere")
        _fill_for_a_while(stage, KAFKA, folder, "full disk under Kafka")


def _fill_for_a_while(stage: Stage, part: str, folder: Path, fault: str) -> None:
    servers = own(stage)
    pid = servers.pid(part)
    filler = folder / "filler"
    fill(filler)

    def noticed() -> bool:
        _use_room(stage, part)
        # Without an SLF4J binding, Kafka logs nothing, so check the pid.
        return servers.pid_or_none(part) != pid

    try:
        until(noticed, f"{part} stops for want of room", seconds=120)
        stage.fault(fault)
        stage.wait(FULL_SECONDS)
    finally:
        filler.unlink()
    servers.wait_answers(part)
    stage.recovered(f"{'Postgres' if part == POSTGRES else 'Kafka'} without room for its log")


@contextmanager
def _no_segment_recycled(stage: Stage) -> Iterator[None]:
    """Hold WAL with a replication slot: checkpoints may recycle old segments as fast as new ones are needed."""
    stage.made.query("SELECT pg_create_physical_replication_slot('chaos', immediately_reserve => true)")
    try:
        yield
    finally:
        stage.made.query("SELECT pg_drop_replication_slot('chaos')::text")


def _use_room(stage: Stage, part: str) -> None:
    """Use up the WAL segments that are allocated in advance."""
    if part == POSTGRES:
        stage.quietly(lambda: stage.made.query(SWITCHES))


@contextmanager
def _on_small_disk(servers: OwnServers, part: str, folder: Path) -> Iterator[None]:
    """Move a stopped server's directory to a small file system for the duration of the block."""
    aside = folder.with_name(f"{folder.name}.aside")
    servers.stop_part(part)
    used = sum(path.stat().st_blocks * 512 for path in folder.rglob("*")) // MB
    owner = folder.stat()
    folder.rename(aside)
    folder.mkdir(mode=owner.st_mode & 0o777)
    with mounted(folder, used + ROOM_MB):
        shutil.chown(folder, owner.st_uid, owner.st_gid)
        folder.chmod(owner.st_mode & 0o777)
        _copy(aside, folder)
        servers.start_part(part)
        try:
            yield
        finally:
            servers.stop_part(part)
            shutil.rmtree(aside)
            _copy(folder, aside)
    folder.rmdir()
    aside.rename(folder)
    servers.start_part(part)


def _copy(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", f"{source}/.", str(target)], check=True)
