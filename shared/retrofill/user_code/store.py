"""The code store: a folder, shared by whoever applies pipelines and all drivers, of archives ``<sha256>.zip``."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path

from retrofill.durable import sync
from retrofill.user_code.archive import Archive


class CodeStoreFails(Exception):
    """The archive cannot be stored; the message is one line that says what to do."""


class CodeUnavailable(Exception):
    """The code that a run was given is not in the store, or not what its name says: the run must not run other code."""


class CodeStore:
    """Archives by the hash of their content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def path(self, sha256: str) -> Path:
        """Where the archive with this hash is."""
        return self._folder / f"{sha256}.zip"

    def put(self, archive: Archive) -> None:
        """Store an archive for good, before anybody is told its name. Raises ``CodeStoreFails``.

        What is there already is only replaced where it is not what its name says.
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
                f"the code store {self._folder} cannot be written: {e.strerror}: set RETROFILL_CODE_STORE to the folder that "
                "the drivers share, or apply with --in-place"
            ) from e

    def get(self, sha256: str) -> bytes:
        """The archive, compared with its name. Raises ``CodeUnavailable``."""
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except OSError as e:
            raise CodeUnavailable(
                f"{path} cannot be read: {e.strerror}: restore the file, or check that RETROFILL_CODE_STORE of the run-starter "
                "is the folder that the pipeline was applied to, then run the failed runs again"
            ) from e
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise CodeUnavailable(
                f"{path} has the hash {found}: it was damaged or changed; apply the same code again, which replaces it, or "
                "restore it, then run the failed runs again"
            )
        return content


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
