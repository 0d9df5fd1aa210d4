"""A code store in a shared directory."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from retrofill.durable import sync
from retrofill.user_code.archive import Archive
from retrofill.user_code.store import ADVICE_TO_APPLY, ADVICE_TO_RESTORE, CodeStoreFails, CodeUnavailable, verified


class FolderStore:
    """Implements ``CodeStore``: files that are synced, then renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.zip"

    def put(self, archive: Archive) -> None:
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
                f"the code store {self._folder} cannot be written: {e.strerror}: {ADVICE_TO_APPLY}"
            ) from e

    def get(self, sha256: str) -> bytes:
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except OSError as e:
            raise CodeUnavailable(f"{path} cannot be read: {e.strerror}: {ADVICE_TO_RESTORE}") from e
        return verified(content, sha256, path)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
