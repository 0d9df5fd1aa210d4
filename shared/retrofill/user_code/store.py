"""The code store: a shared directory of archives ``<sha256>.zip``."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path

from retrofill.durable import sync
from retrofill.user_code.archive import Archive


class CodeStoreFails(Exception):
    """The archive cannot be stored. The message is one line and says what to do."""


class CodeUnavailable(Exception):
    """A run's archive is missing, corrupt or cannot be unpacked.

    The run must not use other code.
    """


class CodeStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.zip"

    def put(self, archive: Archive) -> None:
        """Store an archive durably.

        An existing file is only replaced if it is corrupt. Raises ``CodeStoreFails``.
        """
        target = self.path(archive.sha256)
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if target.exists() and target.read_bytes() == archive.content:
                return
            _write(draft, archive.content)
            draft.replace(target)
            sync(self._folder)
        except OSError as e:
            with suppress(OSError):
                draft.unlink()
            raise CodeStoreFails(
                f"the code store {self._folder} cannot be written: {e.strerror}: set RETROFILL_CODE_STORE to the directory "
                "that the drivers share, or apply with --in-place"
            ) from e

    def get(self, sha256: str) -> bytes:
        """The archive's content, verified against its hash. Raises ``CodeUnavailable``."""
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except OSError as e:
            raise CodeUnavailable(
                f"{path} cannot be read: {e.strerror}: restore the file, or check that the run-starter's RETROFILL_CODE_STORE "
                "is the directory that the pipeline was applied to, then run the failed runs again"
            ) from e
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise CodeUnavailable(
                f"{path} has the hash {found}: it was damaged or changed; restore it, or apply the same code again, which "
                "replaces it, then run the failed runs again"
            )
        return content


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
