"""Absolute paths, and ``file:`` URIs as Hadoop reads them: ``#`` and ``?`` are ordinary characters, unlike for ``urlsplit``."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from retrofill.outputs.cannot_stage import CannotStage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL | re.IGNORECASE)


def path_in(uri: str) -> str | None:
    """The absolute path in a ``file:`` URI of this machine, as written; ``None`` if it is none."""
    found = _FILE.fullmatch(uri)
    return None if found is None else found.group(1)


def local_path(path: str) -> Path:
    """The directory of an absolute path or ``file:`` URI. Raises ``CannotStage`` for anything else.

    Publication needs a rename of directories that is atomic and fails if its source is missing or its target is not, as
    on POSIX.
    """
    local, other = path_in(str(path)), _SCHEME.match(str(path))
    if local is not None:
        path = unquote(local)
    elif other is not None:
        raise CannotStage(
            f"{path} cannot be staged: a rename on {other.group(1)}: does not fail when it must; make a table whose partitions are "
            "in that directory and stage its rows (run.stage_table, or a file of SQL), or use a POSIX file system"
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise CannotStage(f"{path!r} cannot be staged: its name is not UTF-8") from None
    target = Path(path)
    if not target.is_absolute() or target == Path(target.anchor):
        raise CannotStage(f"{path!r} cannot be staged: give the absolute path of a directory")
    if ".." in target.parts:
        raise CannotStage(f"{path!r} cannot be staged: write it without '..'")
    return target
