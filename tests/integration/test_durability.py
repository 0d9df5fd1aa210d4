"""Acknowledged writes are on disk: while a flush is delayed, no acknowledgment is sent.

strace delays the return of the server's fsync and fdatasync calls.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.chaos.servers import OwnServers
from tests.support.installation import until

from retrofill_core.bus.clients import producer
from retrofill_core.contract.topics import Topic
from retrofill_tools.stack.layout import KAFKA

HELD_SECONDS = 3.0
pytestmark = [
    pytest.mark.long,
    pytest.mark.embedded,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@pytest.fixture(scope="module")
def own() -> Iterator[OwnServers]:
    """Servers whose processes may be traced."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        servers = OwnServers(Path(home))
        try:
            servers.start()
            yield servers
        finally:
            servers.stop()


@contextmanager
def flushes_held(pid: int, log: Path) -> Iterator[Callable[[], int]]:
    """Delay each flush of the process and its threads by ``HELD_SECONDS``. Yields a counter of the
    flushes so far.
    """
    command = [
        "strace", "-f", "-y", "-o", str(log), "-p", str(pid), "-e", "trace=fsync,fdatasync",
        "-e", f"inject=fsync,fdatasync:delay_exit={int(HELD_SECONDS * 1_000_000)}",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        assert "attached" in said, said
        try:
            yield lambda: log.read_text().count("sync(")
        finally:
            tracer.terminate()


def is_acknowledged_only_after_the_flush(act: Callable[[], None], flushes: Callable[[], int]) -> None:
    acknowledged = threading.Event()

    def work() -> None:
        act()
        acknowledged.set()

    acting = threading.Thread(target=work, daemon=True)
    acting.start()
    until(lambda: flushes() > 0 or acknowledged.is_set(), "the server flushes")
    assert not acknowledged.is_set(), "acknowledged before a flush began"
    assert not acknowledged.wait(HELD_SECONDS / 3), "acknowledged while the flush was still held"
    acting.join(60)
    assert acknowledged.is_set(), "never acknowledged"


def test_postgres_acknowledges_a_commit_after_its_flush(own: OwnServers, tmp_path: Path) -> None:
    # Connect as a service does: neither its role nor its database may disable synchronous commits.
    with psycopg.connect(own.settings.dsn_of("backfill-planner"), autocommit=True) as conn:
        table = "retrofill.backfill_planner_shard"
        with flushes_held(conn.info.backend_pid, tmp_path / "strace") as flushes:
            is_acknowledged_only_after_the_flush(
                lambda: conn.execute(f"UPDATE {table} SET epoch = epoch".encode()).close(), flushes
            )
        assert conn.execute(f"SELECT count(*) > 0 FROM {table}".encode()).fetchone() == (True,), "rows were changed"


def test_kafka_acknowledges_a_message_after_its_flush(own: OwnServers, tmp_path: Path) -> None:
    sender = producer(own.settings, "durability")
    topic = f"{own.settings.topic_prefix}{Topic.BACKFILL_REQUESTS}"

    def publish() -> None:
        sender.produce(topic, key=b"k", value=b"{}")
        assert sender.flush(60) == 0

    publish()  # connects, and creates the log segment
    with flushes_held(own.pid(KAFKA), tmp_path / "strace") as flushes:
        is_acknowledged_only_after_the_flush(publish, flushes)
