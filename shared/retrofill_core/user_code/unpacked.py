"""Unpacked code: one directory per hash, created atomically, shared by a machine's drivers."""

from __future__ import annotations

import base64
import errno
import fcntl
import io
import shutil
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from retrofill.system.files import sync, sync_trees
from retrofill_core.settings import Settings
from retrofill_core.user_code.store import OF_THIS_FOLDER, CannotUnpackHere, CodeStore, CodeUnavailable, open_store

# Drafts of killed drivers are removed after this time, when no driver can still be writing to them.
LEFT_BEHIND_SECONDS = 3600.0
# How long a driver waits for another one that fetches the same archive, which may be stopped or cut off.
LOCK_SECONDS = 60.0
ADVICE_HERE = "check free space and write permission, or set RETROFILL_CODE_CACHE"
_EXISTS = (errno.ENOTEMPTY, errno.EEXIST)


def unpacked(settings: Settings, sha256: str) -> Path:
    """The directory with the code of this hash, fetched from the store if needed.

    Raises ``CodeUnavailable``: ``CannotUnpackHere`` if only this machine is to blame.
    """
    cache = cache_of(settings)
    target = cache / sha256
    what = f"the archive {sha256}.zip cannot be unpacked into {cache}"
    try:
        if target.is_dir():
            return target
        store = _store(settings, sha256)
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CannotUnpackHere(f"{what}: {e}: {ADVICE_HERE}") from e
    try:
        with one_at_a_time(cache / f".{sha256}.lock"):
            if not target.is_dir():
                _unpack(store.get(sha256), cache, target)
    except (OSError, zipfile.BadZipFile, NotImplementedError) as e:
        if isinstance(e, OSError) and e.errno in OF_THIS_FOLDER:
            raise CannotUnpackHere(f"{what}: {e}: {ADVICE_HERE}") from e
        raise CodeUnavailable(f"{what}: {e}: apply the pipeline again, then run the failed runs again") from e
    return target


def cache_of(settings: Settings) -> Path:
    """The directory for what this machine unpacks."""
    return (settings.code_cache or settings.home / "code-cache").absolute()


def code_of(settings: Settings, sha256: str, whole: bool) -> dict[str, str]:
    """The code of this hash for a driver: its folder on this machine or, if ``whole``, the archive itself in base64.

    Raises ``CodeUnavailable``.
    """
    if not whole:
        return {"folder": str(unpacked(settings, sha256))}
    return {"archive": base64.b64encode(_store(settings, sha256).get(sha256)).decode()}


def _store(settings: Settings, sha256: str) -> CodeStore:
    store = open_store(settings)
    if store is None:
        raise CodeUnavailable(
            f"the run's code is the archive {sha256}.zip, but RETROFILL_CODE_STORE is not set for its driver: set it for the "
            "run-starter to where the pipeline was applied to, then run the failed runs again"
        )
    return store


@contextmanager
def one_at_a_time(path: Path, seconds: float | None = None) -> Iterator[None]:
    """So that a machine fetches an archive once.

    Nothing else depends on it: a process that does not get the lock in time fetches too.
    """
    with path.open("w") as lock:
        # Some network file systems have no locks.
        with suppress(OSError):
            Retrying(
                retry=retry_if_exception_type(BlockingIOError),
                stop=stop_after_delay(LOCK_SECONDS if seconds is None else seconds),
                wait=wait_fixed(0.05),
                reraise=True,
            )(fcntl.flock, lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield
        finally:
            # Who waits for it finds the archive unpacked, and so does who makes another one.
            path.unlink(missing_ok=True)


def _unpack(content: bytes, cache: Path, target: Path) -> None:
    _remove_left_behind(cache)
    draft = cache / f".{target.name}.{uuid.uuid4().hex}"
    draft.mkdir()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as zipped:
            for entry in zipped.infolist():
                path = Path(zipped.extract(entry, draft))
                # A task that writes here by mistake must not change other runs' code.
                path.chmod(0o444 | entry.external_attr >> 16 & 0o111)
        sync_trees([draft])
        draft.rename(target)
        sync(cache)
    except OSError as e:
        # Another driver was faster and created the same directory.
        if e.errno not in _EXISTS:
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _remove_left_behind(cache: Path) -> None:
    before = time.time() - LEFT_BEHIND_SECONDS
    for path in cache.glob(".*"):
        try:
            if path.stat().st_mtime < before:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue  # another driver has just removed it
