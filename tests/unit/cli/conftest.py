"""The command line as a user runs it, in this process; and a real planner with its own database and topics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from retrofill.bus.clients import admin
from retrofill.cli.main import run
from retrofill.init import initialise
from retrofill.settings import Settings


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line."""

    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["retrofill", *arguments])
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("NO_COLOR", "1")
        capfd.readouterr()
        try:
            run()
            status = 0
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else 0
        captured = capfd.readouterr()
        return Result(status, captured.out, captured.err)

    return call


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No stack in this folder, and no endpoint set."""
    for name in [name for name in os.environ if name.startswith("RETROFILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def installation() -> Iterator[dict[str, str]]:
    """A database and topics of its own on the servers that the environment names, as environment variables."""
    dsn = os.environ.get("RETROFILL_POSTGRES_DSN")
    if dsn is None or "RETROFILL_KAFKA_BOOTSTRAP_SERVERS" not in os.environ:
        pytest.skip("needs RETROFILL_POSTGRES_DSN and RETROFILL_KAFKA_BOOTSTRAP_SERVERS")
    name = f"cli_{uuid.uuid4().hex[:8]}"
    own = {
        "RETROFILL_POSTGRES_DSN": make_conninfo(dsn, dbname=name),
        "RETROFILL_TOPIC_PREFIX": f"{name}.",
        "RETROFILL_PARTITIONS": "2",
        "RETROFILL_REPLICATION_FACTOR": "1",
    }
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in own.items():
                patch.setenv(variable, value)
            initialise(Settings())
            yield own
            _delete_topics(Settings())
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _delete_topics(settings: Settings) -> None:
    client = admin(settings, "test")
    mine = [name for name in client.list_topics(timeout=10).topics if name.startswith(settings.topic_prefix)]
    for done in client.delete_topics(mine).values():
        done.result(20)


@pytest.fixture(scope="module")
def planner(installation: dict[str, str]) -> Iterator[dict[str, str]]:
    """A planner process for that installation."""
    process = subprocess.Popen([sys.executable, "-m", "backfill_planner"], env={**os.environ, **installation})
    yield installation
    process.terminate()
    process.wait(20)


@pytest.fixture
def here(installation: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Commands find the installation."""
    for variable, value in installation.items():
        monkeypatch.setenv(variable, value)
    return installation
