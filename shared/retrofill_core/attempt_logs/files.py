"""The files of attempts' logs: ``ID.0.log``, ``ID.1.log``, …, each cut at the end of a line."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # Not loaded by the writer, which starts with each host: settings take longer than all else that it needs.
    from retrofill_core.settings import Settings

# Attempts per folder, so that no folder gets too large.
PER_FOLDER = 1000
CHUNK = 1_000_000
_IS_OURS = re.compile(r"\d+/\d+\.\d+\.log")
MAX_POSITION = 2**63
# The header with the end of what a host sent.
NEXT = "X-Retrofill-Next"


class Position(NamedTuple):
    """A place in a log: so many bytes into a part. Parts before it may be gone."""

    part: int = 0
    byte: int = 0

    def __str__(self) -> str:
        return f"{self.part}:{self.byte}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ``ValueError``."""
        part, _, byte = text.partition(":")
        found = cls(int(part), int(byte))
        if not all(0 <= each < MAX_POSITION for each in found):
            raise ValueError(f"{text!r} is no place in a file")
        return found


def folder_of(settings: Settings) -> Path:
    """Where the logs are: the store that all hosts share, or a folder of this host."""
    return (settings.log_store or settings.home / "logs" / "attempts").absolute()


def path_of(folder: Path, attempt_id: int, part: int) -> Path:
    return folder / str(attempt_id // PER_FOLDER) / f"{attempt_id}.{part}.log"


def parts(folder: Path, attempt_id: int) -> list[int]:
    """The numbers of a log's parts that are there, in order."""
    found = path_of(folder, attempt_id, 0).parent.glob(f"{attempt_id}.*.log")
    numbers = (path.name.split(".")[1] for path in found)
    return sorted(int(number) for number in numbers if number.isdigit())


def read(folder: Path, attempt_id: int, at: Position, most: int = CHUNK) -> tuple[bytes, Position] | None:
    """What follows ``at``, at most so many bytes, and where that ends. ``None``: there is no log."""
    numbers = parts(folder, attempt_id)
    if not numbers:
        return None
    for number in numbers:
        if number < at.part:
            continue
        begin = at.byte if number == at.part else 0
        data = _read(path_of(folder, attempt_id, number), begin, most)
        at = Position(number, begin + len(data))
        if data:
            return data, at
    return b"", at


def _read(path: Path, begin: int, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(most)
    except FileNotFoundError:  # removed in between
        return b""


class Found(NamedTuple):
    """One file of a log."""

    changed: float
    size: int
    path: Path


def sweep(folder: Path, *, older_than: float, total_bytes: int, busy: frozenset[Path] = frozenset()) -> None:
    """Remove files that nobody wrote since ``older_than`` (Unix time), and the oldest beyond a total size.

    ``busy`` ones stay. Hosts that share the folder may do this at the same time.
    """
    files = sorted(_files(folder))
    total = sum(file.size for file in files)
    for file in files:
        if (file.changed < older_than or total > total_bytes) and file.path not in busy:
            file.path.unlink(missing_ok=True)
            total -= file.size
            _remove_empty(file.path.parent)


def _files(folder: Path) -> list[Found]:
    found: list[Found] = []
    for path in folder.glob("*/*.log"):
        # Other programs may keep their own logs in the folder that users name.
        if not _IS_OURS.fullmatch(str(path.relative_to(folder))):
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found.append(Found(status.st_mtime, status.st_size, path))
    return found


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # others are still in it
        folder.rmdir()
