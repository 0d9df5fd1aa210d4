"""Files of one embedded stack, and its permanent identity."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from retrofill_core.contract.topics import CONSOLE, SERVICES
from retrofill_core.setting_types import ENDPOINTS_FILE
from retrofill_tools.stack import kafka_auth

KAFKA, POSTGRES, SPARK = "kafka", "postgres", "spark-connect"
SERVERS = (POSTGRES, KAFKA, SPARK)
PARTS = (*SERVERS, *SERVICES, CONSOLE)
SUPERVISOR = "supervisor"
# Settings with server addresses. A stack ignores those in the environment and uses its own:
# it must not initialize a database that it does not run.
ADDRESSES = (
    "kafka_bootstrap_servers",
    "kafka_security_protocol",
    "kafka_sasl_mechanism",
    "kafka_passwords",
    "kafka_acls",
    "postgres_dsn",
    "postgres_service_dsns",
    "spark_remote",
)
SECRETS = ("owner", *SERVICES, "reader", kafka_auth.ADMIN, *map(kafka_auth.secret_name, kafka_auth.USERS))
# What a stack writes to its home, directories and files. The lock is last: whoever holds it deletes the others.
OWN = (*SERVERS, "logs", "run", "code", "code-cache", "driver-package", "identity.json", ENDPOINTS_FILE, "up.lock")
# A Unix socket's path has at most 108 bytes, and supervisord temporarily appends to it.
MAX_SOCKET_PATH = 80


@dataclass(frozen=True)
class Identity:
    """The stack's id, which marks its processes, and its secrets.

    Stored in the home; only its owner can read it.
    """

    id: str
    cluster_id: str
    passwords: dict[str, str]
    socket: str
    home: str = ""


@dataclass(frozen=True)
class Layout:
    """The directories and files of a home (an absolute path)."""

    home: Path

    def log(self, part: str) -> Path:
        return self.home / "logs" / f"{part}.log"

    def data(self, part: str) -> Path:
        return self.home / part

    @property
    def run(self) -> Path:
        """Pid files, ready files, and configuration, which each start rewrites."""
        return self.home / "run"

    @property
    def identity_file(self) -> Path:
        return self.home / "identity.json"

    def make(self) -> None:
        for folder in (self.home, self.home / "logs", self.run):
            folder.mkdir(parents=True, exist_ok=True)

    def delete(self) -> None:
        """Delete all that the stack has written. What else is in the home, or around it, stays."""
        for name in OWN:
            path = self.home / name
            if path.is_dir() and not path.is_symlink():
                # Unpacked code is read-only.
                for folder, _, _ in os.walk(path):
                    Path(folder).chmod(0o700)
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self.home.rmdir()

    def identity(self) -> Identity | None:
        """The home's identity, or ``None`` before the first start."""
        if not self.identity_file.exists():
            return None
        return Identity(**json.loads(self.identity_file.read_text()))

    def make_identity(self) -> Identity:
        """The home's identity; created at the first start."""
        found = self.identity()
        if found is None:
            found = self._new_identity()
        elif found.home not in ("", str(self.home)):
            # The home was copied or moved: its processes are not the original's.
            found = replace(found, id=str(uuid.uuid4()), socket=self._socket(), home=str(self.home))
        elif not _is_ours(Path(found.socket).parent):
            # The system's temporary directory was cleared.
            found = replace(found, socket=self._socket())
        elif set(SECRETS) <= set(found.passwords):
            return found
        # Add secrets that an older version did not have.
        found = replace(found, passwords={name: secrets.token_hex(16) for name in SECRETS} | found.passwords)
        self._write_identity(found)
        return found

    def _new_identity(self) -> Identity:
        return Identity(
            id=str(uuid.uuid4()),
            # 16 bytes in URL-safe base64, without a leading dash, which Kafka's tool rejects.
            cluster_id="R" + secrets.token_urlsafe(15)[:19] + "Aw",
            passwords={name: secrets.token_hex(16) for name in SECRETS},
            socket=self._socket(),
            home=str(self.home),
        )

    def _write_identity(self, identity: Identity) -> None:
        draft = self.identity_file.with_suffix(".tmp")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(identity.__dict__, file)
            file.flush()
            # Synced, because the database on disk uses these passwords.
            os.fsync(file.fileno())
        draft.replace(self.identity_file)

    def _socket(self) -> str:
        inside = self.run / "supervisor.sock"
        if len(os.fsencode(inside)) <= MAX_SOCKET_PATH:
            return str(inside)
        return str(Path(tempfile.mkdtemp(prefix="retrofill-")) / "supervisor.sock")


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and folder.stat().st_uid == os.getuid()
