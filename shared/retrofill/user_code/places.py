"""Distinguishes user code, which is shipped, from installed packages."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

_PACKAGES = ("site-packages", "dist-packages")
# An environment also has the packages of another Python on its path.
_INSTALLED = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {entry for entry in sys.path if entry.endswith(_PACKAGES)}
)
# Where all of Retrofill is installed beside each other, the beginning of its other packages' folders, too.
_OURS = str(Path(__file__).parents[1])


def is_users(path: str) -> bool:
    """Whether a module's file belongs to neither Python, an installed package nor Retrofill."""
    return not path.startswith((*_INSTALLED, _OURS))


def root_of(file: str | None = None, module: str | None = None) -> Path | None:
    """The directory that a file or module is imported from;

    ``None`` for an installed package. A module must be imported.
    """
    if file is not None:
        return Path(file).parent
    assert module is not None
    found = getattr(sys.modules[module], "__file__", None)
    if found is None or not is_users(found):
        return None
    path = Path(found).absolute()
    inside = len(module.split(".")) - (path.name != "__init__.py")
    return path.parents[inside]
