"""A code store in a shared directory."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from retrofill.system.files import sync
from retrofill_core.user_code.archive import Archive
from retrofill_core.user_code.store import (
    ADVICE_TO_APPLY,
    ADVICE_TO_PACK,
    ADVICE_TO_RESTORE,
    CodeStoreFails,
    CodeUnavailable,
    Missing,
    not_copied,
    verified,
)


class FolderStore:
    """Implements ``CodeStore``: files that are synced, then renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.zip"

    def put(self, archive: Archive) -> None:
        target = self.path(archive.sha256)
        with self._errors(ADVICE_TO_APPLY):
            if not (target.exists() and target.read_bytes() == archive.content):
                self._write(target, lambda file: file.write(archive.content))

    def get(self, sha256: str) -> bytes:
        path = self.path(sha256)
        try:
            content = path.read_bytes()
        except OSError as e:
            raise CodeUnavailable(f"{path} cannot be read: {e.strerror}: {ADVICE_TO_RESTORE}") from e
        return verified(content, sha256, path)

    def has(self, name: str) -> bool:
        with self._errors(ADVICE_TO_PACK):
            return (self._folder / name).is_file()

    def send(self, name: str, file: Path) -> None:
        with self._errors(ADVICE_TO_PACK), file.open("rb") as source:
            self._write(self._folder / name, lambda target: shutil.copyfileobj(source, target))

    def fetch(self, name: str, target: Path) -> None:
        path = self._folder / name
        try:
            shutil.copyfile(path, target)
        except OSError as e:
            kind = Missing if isinstance(e, FileNotFoundError) else not_copied(e)
            raise kind(f"{path} cannot be copied to {target.parent}: {e.strerror}: {ADVICE_TO_RESTORE}") from e

    def _write(self, target: Path, write: Callable[[IO[bytes]], object]) -> None:
        """Write where no reader looks, then rename."""
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise
        sync(self._folder)

    @contextmanager
    def _errors(self, advice: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise CodeStoreFails(f"the code store {self._folder} cannot be written: {e.strerror}: {advice}") from e
