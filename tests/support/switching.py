"""Postgres servers of one cluster: a primary, and standbys that can take over."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from retrofill_core.settings import Settings
from retrofill_tools.stack.layout import POSTGRES, Identity, Layout
from retrofill_tools.stack.ports import held_port
from retrofill_tools.stack.postgres import BINARIES, _not_as_root, prepare
from tests.support.installation import Installation, until


class Server:
    """One Postgres server in a folder of its own. ``dsn``: of its superuser."""

    def __init__(self, home: Path, identity: Identity, port: int, dsn: str) -> None:
        self.layout = Layout(home)
        self.port = port
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=port)
        self._identity = identity
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(exist_ok=True)

    @property
    def data(self) -> Path:
        return self.layout.data(POSTGRES)

    def start(self) -> None:
        """Start it and wait until it answers, as a primary or a standby."""
        command = prepare(self.layout, self._identity, self.port, dict(os.environ))
        with (self.layout.home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        until(self._answers, f"Postgres on port {self.port} answers")

    def end(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT sends everything to standbys first, SIGQUIT nothing more."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def follow(self, primary: Server, name: str) -> None:
        """Make it a new copy of ``primary`` that follows it as ``name``, and wait until it does."""
        prefix, user = _not_as_root(self.layout.home)
        subprocess.run(["rm", "-rf", str(self.data)], check=True)
        self.data.mkdir(mode=0o700, parents=True)
        os.chown(self.data, user, -1)
        source = make_conninfo(primary.dsn, application_name=name)
        command = [*prefix, str(BINARIES / "pg_basebackup"), "-D", str(self.data), "-d", source, "-R", "-c", "fast"]
        subprocess.run(command, check=True, capture_output=True)
        self.start()
        self.wait_follows(primary, name)

    def wait_follows(self, primary: Server, name: str) -> None:
        """Wait until it has all that ``primary`` has."""
        caught_up = (
            "SELECT count(*) FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
            " AND replay_lsn = pg_current_wal_lsn()"
        )
        until(lambda: primary.value(caught_up, name) == 1, f"{name} follows")

    def be_synchronous_to(self, names: str) -> None:
        """Let each commit wait for standbys of these names."""
        with self._connect() as conn:
            conn.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            conn.execute("SELECT pg_reload_conf()")
        until(lambda: self.value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1, "it is")

    def be_asynchronous(self) -> None:
        """Let no commit wait for a standby."""
        with self._connect() as conn:
            conn.execute("ALTER SYSTEM RESET ALL")
            conn.execute("SELECT pg_reload_conf()")
        until(lambda: self.value("SHOW synchronous_standby_names") == "", "it is")

    def is_standby(self) -> bool:
        return self._process is None or bool(self.value("SELECT pg_is_in_recovery()"))

    def promote(self) -> None:
        self.value("SELECT pg_promote()")

    def value(self, statement: str, *parameters: Any) -> Any:
        with self._connect() as conn:
            row = conn.execute(statement.encode(), parameters or None).fetchone()
            assert row is not None
            return row[0]

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=3)

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            return bool(self.value("SELECT true"))
        return False


@contextmanager
def servers_of(
    made: Installation, template: Path, home: Path, identity: Identity, count: int
) -> Iterator[list[Server]]:
    """Servers instead of the one with the data in ``template``, which is stopped. The first one runs.

    The installation then has a DSN of all of them, of which clients use the one that is writable.
    """
    with ExitStack() as holding:
        ports = [holding.enter_context(held_port()) for _ in range(count)]
        dsn = made.settings.dsn_of("owner")
        found = [Server(home / f"postgres-{n}", identity, port, dsn) for n, port in enumerate(ports)]
        _copy(template, found[0].data)
        made.settings = on_servers(made.settings, found)
        try:
            found[0].start()
            yield found
        finally:
            for each in found:
                each.end(signal.SIGQUIT)


def on_servers(settings: Settings, servers: Sequence[Server]) -> Settings:
    """The settings with DSNs of these servers, of which clients use the one that is writable."""
    ports = [each.port for each in servers]
    own = {name: _any_of(each.get_secret_value(), ports) for name, each in settings.postgres_service_dsns.items()}
    dsn = _any_of(settings.dsn_of("owner"), ports)
    return settings.model_copy(update={"postgres_dsn": dsn, "postgres_service_dsns": own})


def _copy(template: Path, data: Path) -> None:
    data.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(template), str(data)], check=True)


def _any_of(dsn: str, ports: list[int]) -> SecretStr:
    """As a URL, the form in which users write several hosts."""
    parts = conninfo_to_dict(dsn)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    login = f"{parts['user']}:{parts['password']}"
    return SecretStr(f"postgresql://{login}@{hosts}/{parts['dbname']}?target_session_attrs=read-write")
