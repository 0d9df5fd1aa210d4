"""The code store: archives ``<sha256>.zip``, and other files by name, in a directory or at an fsspec address."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from retrofill.system.files import sync
from retrofill.user_code.loading import CodeUnavailable as CodeUnavailable
from retrofill_core.setting_types import store_options
from retrofill_core.settings import Settings
from retrofill_core.user_code.archive import Archive

ADVICE_TO_APPLY = "set RETROFILL_CODE_STORE to a directory or address that the drivers share, or apply with --in-place"
ADVICE_TO_PACK = "set RETROFILL_CODE_STORE to a directory or address that the run-starters share"
ADVICE_TO_RESTORE = (
    "restore it, or check that the run-starter's RETROFILL_CODE_STORE is where the pipeline was applied to, then run the "
    "failed runs again"
)


class CodeStoreFails(Exception):
    """The archive cannot be stored. The message is one line and says what to do."""


class Missing(CodeUnavailable):
    """There is no such file in the store."""


class CannotUnpackHere(CodeUnavailable):
    """This machine cannot store or unpack it. Another one may, and this one once it is repaired."""


# What only writing fails with, which is done on this machine: no space, no quota, or a file system that is read-only.
OF_THIS_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# What this machine's folders and limits may be to blame for, and what is unpacked never is.
OF_THIS_FOLDER = (*OF_THIS_MACHINE, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def not_copied(error: Exception) -> type[CodeUnavailable]:
    """The kind of an error that a copy from a store to this machine failed with."""
    here = isinstance(error, OSError) and error.errno in OF_THIS_MACHINE
    return CannotUnpackHere if here else CodeUnavailable


class CodeStore(Protocol):
    """Readers see an archive or file completely or not at all."""

    def put(self, archive: Archive) -> None:
        """Store an archive durably.

        An existing one is only replaced if it is corrupt. Raises ``CodeStoreFails``.
        """

    def get(self, sha256: str) -> bytes:
        """The archive's content, verified against its hash. Raises ``CodeUnavailable``."""

    def has(self, name: str) -> bool:
        """Whether there is a file with this name. Raises ``CodeStoreFails``."""

    def send(self, name: str, file: Path) -> None:
        """Store a copy of a file of any size, in place of one with this name. Raises ``CodeStoreFails``."""

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to ``target``, not verified.

        Raises ``CodeUnavailable``: ``Missing`` if there is none, ``CannotUnpackHere`` if it cannot be written.
        """


def verified(content: bytes, sha256: str, place: object) -> bytes:
    """The content that was read from ``place``. Raises ``CodeUnavailable`` if its hash is another one."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise CodeUnavailable(
            f"{place} has the hash {found}: it was damaged or changed; restore it, or apply the same code again, which "
            "replaces it, then run the failed runs again"
        )
    return content


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


FILE = "file://"


def open_store(settings: Settings) -> CodeStore | None:
    """The code store, if one is set. Connects to nothing."""
    return None if settings.code_store is None else store_of(settings.code_store, settings)


def store_of(address: str, settings: Settings) -> CodeStore:
    """The files in a directory or at an fsspec address, with the options of the code store."""
    if "://" not in address or address.startswith(FILE):
        return FolderStore(Path(address.removeprefix(FILE)))
    # Imported here: a directory needs no fsspec.
    from retrofill_core.user_code.remote_store import RemoteStore

    return RemoteStore(address, store_options(settings.code_store_options))
