"""The texts that name a directory of this machine: absolute paths, and ``file:`` URIs as Hadoop reads them.

``#`` and ``?`` are ordinary characters in them, unlike for ``urlsplit``.
"""

from __future__ import annotations

import re

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL | re.IGNORECASE)


def path_in(uri: str) -> str | None:
    """The absolute path in a ``file:`` URI of this machine, as written; ``None`` if it is none."""
    found = _FILE.fullmatch(uri)
    return None if found is None else found.group(1)


def why_not_local(path: str) -> str | None:
    """Why no directory of this name can be staged, in one line; ``None`` if it is absolute and of this machine.

    Publication needs a rename of directories that is atomic and fails if its source is missing or its target is not, as
    on POSIX.
    """
    if path_in(path) is not None:
        return None
    scheme = _SCHEME.match(path)
    if scheme is not None:
        return (
            f"{path} cannot be staged: a rename on {scheme.group(1)}: does not fail when it must; make a table whose partitions "
            "are in that directory and stage its rows (run.stage_table, a file of SQL, or {stage_location:TABLE} for a script), "
            "or use a POSIX file system"
        )
    return None if path.startswith("/") else f"{path!r} cannot be staged: give the absolute path of a directory"
