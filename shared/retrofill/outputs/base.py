"""The base of a review: the state that the place of an output had when the output was staged.

Whoever publishes later compares it with the present state. What somebody has changed meanwhile is not replaced, but reviewed
again.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import Any, Iterator
from urllib.parse import parse_qsl, urlencode

from retrofill.outputs.kept import MARKER


class BaseChanged(Exception):
    """Somebody has changed what approved output would replace, so it is not published. ``place``: for people."""

    def __init__(self, place: str, output: str) -> None:
        super().__init__(f"{place} was changed after the review had compared it")
        self.output = output


@dataclass(frozen=True)
class Base:
    """A state of an output's place: ``content`` tells whether two states are the same, ``version`` whether it must be asked."""

    version: str
    content: str

    def __str__(self) -> str:
        return urlencode(asdict(self))

    @classmethod
    def of(cls, text: str) -> Base:
        return cls(**dict(parse_qsl(text, keep_blank_values=True)))


def base_of_folder(folder: Path) -> Base:
    """The state of a directory, whose renames change nothing. Raises ``OSError``.

    Its marker, and the names, sizes and times of its files: whoever writes a file changes one of them.
    """
    seen = hashlib.sha256()
    number = 0
    for line in _lines(folder):
        seen.update(dumps(line).encode())
        number += 1
    return Base(_marker(folder), f"{number} files {seen.hexdigest()[:32]}" if os.path.lexists(folder) else "nothing")


def _lines(folder: Path) -> Iterator[list[Any]]:
    if folder.is_dir():
        for place, folders, files in os.walk(folder):
            folders.sort()
            # Links to directories are not followed, like other files.
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]  # noqa: PTH114,PTH118 - many
            for name in sorted([*files, *links]):
                path = os.path.join(place, name)  # noqa: PTH118 - there may be many files
                found = os.lstat(path)
                yield [os.path.relpath(path, folder), found.st_size, found.st_mtime_ns]
    elif os.path.lexists(folder):
        found = folder.lstat()
        yield ["", found.st_size, found.st_mtime_ns]


def _marker(folder: Path) -> str:
    """A hash of the marker, if there is one."""
    try:
        return hashlib.sha256((folder / MARKER).read_bytes()).hexdigest()[:16]
    except (FileNotFoundError, NotADirectoryError):
        return ""
