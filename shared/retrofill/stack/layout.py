"""Where the parts of one embedded stack keep what, and what stays the same over its life."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from retrofill.contract.topics import SERVICES
from retrofill.stack import kafka_auth

KAFKA, POSTGRES, SPARK = "kafka", "postgres", "spark-connect"
SERVERS = (POSTGRES, KAFKA, SPARK)
PARTS = (*SERVERS, *SERVICES)
SUPERVISOR = "supervisor"
# The settings that say where servers are. A stack has its own, whatever the shell of whoever starts it names: it must
# not prepare a database that it does not run.
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
# A unix socket's path has 108 bytes at most, and supervisord adds to it while it makes it.
MAX_SOCKET_PATH = 80


@dataclass(frozen=True)
class Identity:
    """What tells this stack's processes from all others, and its secrets; kept in the home, readable by its owner only."""

    id: str
    cluster_id: str
    passwords: dict[str, str]
    socket: str
    home: str = ""


@dataclass(frozen=True)
class Layout:
    """The folders and files of a home (an absolute path)."""

    home: Path

    def log(self, part: str) -> Path:
        """The log of a part."""
        return self.home / "logs" / f"{part}.log"

    def data(self, part: str) -> Path:
        """The data of a server."""
        return self.home / part

    @property
    def run(self) -> Path:
        """Pid files, ready files, configuration made anew at each start."""
        return self.home / "run"

    @property
    def identity_file(self) -> Path:
        """Identity and secrets."""
        return self.home / "identity.json"

    def make(self) -> None:
        """Make the folders."""
        for folder in (self.home, self.home / "logs", self.run):
            folder.mkdir(parents=True, exist_ok=True)

    def identity(self) -> Identity | None:
        """The identity of this home, or ``None`` before its first start."""
        if not self.identity_file.exists():
            return None
        return Identity(**json.loads(self.identity_file.read_text()))

    def make_identity(self) -> Identity:
        """The identity of this home, made at the first start."""
        found = self.identity()
        if found is None:
            found = self._new_identity()
        elif found.home not in ("", str(self.home)):
            # A copy of a home, or one that was moved: its processes are not those of the original.
            found = replace(found, id=str(uuid.uuid4()), socket=self._socket(), home=str(self.home))
        elif not _is_ours(Path(found.socket).parent):
            # The folder for temporary files was cleared.
            found = replace(found, socket=self._socket())
        elif set(SECRETS) <= set(found.passwords):
            return found
        # Those that an older version did not know.
        found = replace(found, passwords={name: secrets.token_hex(16) for name in SECRETS} | found.passwords)
        self._write_identity(found)
        return found

    def _new_identity(self) -> Identity:
        return Identity(
            id=str(uuid.uuid4()),
            # Kafka wants 16 bytes as URL-safe base64, and no dash in front, which its tool takes for an option.
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
            # The passwords of a database that is on the disk must be there too.
            os.fsync(file.fileno())
        draft.replace(self.identity_file)

    def _socket(self) -> str:
        inside = self.run / "supervisor.sock"
        if len(os.fsencode(inside)) <= MAX_SOCKET_PATH:
            return str(inside)
        return str(Path(tempfile.mkdtemp(prefix="retrofill-")) / "supervisor.sock")


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and folder.stat().st_uid == os.getuid()
