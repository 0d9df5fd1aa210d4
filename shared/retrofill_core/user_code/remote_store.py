"""A code store at an fsspec address, such as ``s3://bucket/prefix``."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from retrofill.masking import MASK, hides, masked
from retrofill_core.user_code.archive import Archive
from retrofill_core.user_code.store import (
    ADVICE_TO_APPLY,
    ADVICE_TO_PACK,
    ADVICE_TO_RESTORE,
    CodeStoreFails,
    Missing,
    not_copied,
    verified,
)

# Object stores, with the extra that installs their library.
OBJECT_STORES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}
# A user waits for an upload. A run that cannot read its code fails, so an outage of a minute is sat out.
PUT_SECONDS, GET_SECONDS = 10.0, 60.0
MAX_WAIT_SECONDS = 5.0
# Trying again does not help. Everything else may be the network or a busy server: each library has errors of its own.
_FINAL = (FileNotFoundError, PermissionError, NotImplementedError, ImportError, ValueError, TypeError)
MAX_REASON = 500


class RemoteStore:
    """Implements ``CodeStore``. ``options``: arguments of the address's file system."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        self._address = address.rstrip("/")
        self._scheme = address.partition("://")[0]
        self._options = options

    def put(self, archive: Archive) -> None:
        self._write(ADVICE_TO_APPLY, self._put, archive)

    def get(self, sha256: str) -> bytes:
        name = f"{sha256}.zip"
        content: bytes = self._read(name, lambda files, path: files.cat_file(path))
        return verified(content, sha256, f"{self._address}/{name}")

    def has(self, name: str) -> bool:
        found: bool = self._write(ADVICE_TO_PACK, self._has, name)
        return found

    def send(self, name: str, file: Path) -> None:
        self._write(ADVICE_TO_PACK, self._send, name, file)

    def fetch(self, name: str, target: Path) -> None:
        self._read(name, lambda files, path: files.get_file(path, str(target)))

    def _write(self, advice: str, write: Callable[..., Any], *arguments: object) -> Any:
        try:
            return _retrying(PUT_SECONDS)(write, *arguments)
        except Exception as e:  # noqa: BLE001 - each library has errors of its own
            # Not chained: the library's error may quote the options.
            raise CodeStoreFails(
                f"the code store {self._address} cannot be written: {self._reason(e)}: {advice}"
            ) from None

    def _read(self, name: str, read: Callable[[Any, str], Any]) -> Any:
        """What ``read`` returns, of the file system and a path in it."""
        place = f"{self._address}/{name}"
        try:
            return _retrying(GET_SECONDS)(lambda: read(*self._path(name)))
        except FileNotFoundError:
            raise Missing(f"{place} does not exist: {ADVICE_TO_RESTORE}") from None
        except Exception as e:  # noqa: BLE001 - the same as above
            raise not_copied(e)(f"{place} cannot be read: {self._reason(e)}: {ADVICE_TO_RESTORE}") from None

    def _connect(self) -> tuple[Any, str]:
        """The file system, and the store's path in it."""
        # A cached instance would survive a fork, in which it does not work.
        files, folder = fsspec.url_to_fs(self._address, **self._options, skip_instance_cache=True)
        return files, folder.rstrip("/")

    def _path(self, name: str) -> tuple[Any, str]:
        files, folder = self._connect()
        return files, f"{folder}/{name}"

    def _put(self, archive: Archive) -> None:
        files, path = self._path(f"{archive.sha256}.zip")
        found = None
        # S3 refuses to read what is missing, unless the reader may list the bucket.
        with suppress(FileNotFoundError, PermissionError):
            found = files.cat_file(path)
        if found != archive.content:
            self._place(files, path, lambda place: files.pipe_file(place, archive.content))

    def _has(self, name: str) -> bool:
        files, path = self._path(name)
        # As above.
        with suppress(FileNotFoundError, PermissionError):
            files.info(path)
            return True
        return False

    def _send(self, name: str, file: Path) -> None:
        files, path = self._path(name)
        self._place(files, path, lambda place: files.put_file(str(file), place))

    def _place(self, files: Any, path: str, write: Callable[[str], object]) -> None:
        if self._scheme in OBJECT_STORES:
            # An object exists once its upload is complete.
            write(path)
        else:
            _rename_into_place(files, path, write)

    def _reason(self, error: Exception) -> str:
        """The error in one line, without secrets."""
        extra = OBJECT_STORES.get(self._scheme)
        if isinstance(error, ImportError) and extra is not None:
            return f"its library is not installed here (pip install 'retrofill[{extra}]')"
        text = " ".join(str(error).split()) or type(error).__name__
        for secret in _secrets(self._options):
            text = text.replace(secret, MASK)
        return masked(text)[:MAX_REASON].rstrip(".")


def _rename_into_place(files: Any, path: str, write: Callable[[str], object]) -> None:
    """Write where no reader looks, then rename."""
    folder = path.rpartition("/")[0]
    draft = f"{folder}/.{uuid.uuid4().hex}.tmp"
    files.makedirs(folder, exist_ok=True)
    try:
        write(draft)
        # Not every file system renames onto a file. Readers lose one that is replaced.
        with suppress(FileNotFoundError):
            files.rm_file(path)
        files.mv(draft, path)
    except BaseException:
        with suppress(Exception):
            files.rm_file(draft)
        raise


def _retrying(seconds: float) -> Retrying:
    return Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, Exception) and not isinstance(e, _FINAL)),
        stop=stop_after_delay(seconds),
        wait=wait_random_exponential(multiplier=0.5, max=MAX_WAIT_SECONDS),
        reraise=True,
    )


def _secrets(options: Any, secret: bool = False) -> Iterator[str]:
    """The texts in options whose name or content suggests a secret."""
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _secrets(value, secret or hides(name))
    elif isinstance(options, list):
        for value in options:
            yield from _secrets(value, secret)
    elif isinstance(options, str) and options and (secret or hides(options)):
        yield options
