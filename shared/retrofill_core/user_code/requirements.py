"""Requirements files: what they and the files that they name say."""

from __future__ import annotations

import re
from os.path import normpath
from pathlib import Path

_INCLUDES = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)(?:\s+|=|(?<=-r)|(?<=-c))(\S+)", re.MULTILINE)
# Projects, archives and folders on this machine, which may change without the file.
_LOCAL = re.compile(
    r"^\s*(?:[./~]|[^-#\s:@][^#\s:@]*(?:/|\.(?:whl|zip|tar\.\w+)\b)"
    r"|-e|--editable|(?:-f|--find-links)[\s=]*(?!\w+://)\S|(?:[^#\n]*@\s*)?file:)",
    re.MULTILINE,
)


class NoRequirements(Exception):
    """A file cannot be read. The message is one line."""


def read_requirements(file: Path) -> dict[str, str]:
    """The text of a requirements file and of all files that it includes, by path relative to its folder.

    Raises ``NoRequirements``.
    """
    found: dict[str, str] = {}
    _read(file.absolute(), file.absolute().parent, found)
    return found


def is_complete(texts: dict[str, str]) -> bool:
    """Whether the texts alone say what is installed, as far as the package index does not change."""
    return not any(_LOCAL.search(text) for text in texts.values())


def _read(file: Path, root: Path, found: dict[str, str]) -> None:
    name = str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
    if name in found:
        return
    try:
        found[name] = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is no UTF-8 text"
        raise NoRequirements(f"{file} cannot be read: {why}") from e
    for included in _INCLUDES.findall(found[name]):
        if "://" not in included:
            _read(Path(normpath(file.parent / included)), root, found)
